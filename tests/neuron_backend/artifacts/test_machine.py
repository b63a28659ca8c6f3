from decodekit.neuron_backend.artifacts import machine


def test_says_what_a_program_relies_on():
    """A family, and instruction sets in order, each once."""
    assert machine.processor()
    assert sorted(set(machine.instruction_sets())) == machine.instruction_sets()
