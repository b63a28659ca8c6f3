from decodekit.neuron_backend.artifacts import machine


def test_names_the_cpu():
    """A family, and sorted instruction sets without duplicates."""
    assert machine.cpu_family()
    assert sorted(set(machine.instruction_sets())) == machine.instruction_sets()
