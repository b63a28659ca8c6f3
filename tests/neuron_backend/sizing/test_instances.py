import pytest

from decodekit.neuron_backend.sizing.instances import GIB, instance_named, instance_names


@pytest.mark.parametrize(
    ("name", "cores", "memory", "bandwidth"),
    [
        ("inf2.xlarge", 2, 32 * GIB, 820 * GIB),
        ("inf2.8xlarge", 2, 32 * GIB, 820 * GIB),
        ("inf2.24xlarge", 12, 192 * GIB, 4920 * GIB),
        ("inf2.48xlarge", 24, 384 * GIB, 9840 * GIB),
        ("trn1.2xlarge", 2, 32 * GIB, 820 * GIB),
        ("trn1.32xlarge", 32, 512 * GIB, 13_120 * GIB),
        ("trn1n.32xlarge", 32, 512 * GIB, 13_120 * GIB),
        ("trn2.3xlarge", 4, 96 * GIB, 2.9e12),
        ("trn2.48xlarge", 64, 1536 * GIB, 46.4e12),
        ("trn2u.48xlarge", 64, 1536 * GIB, 46.4e12),
        ("trn2-ultraserver", 256, 6144 * GIB, 185.6e12),
        ("trn3-gen1-ultraserver", 256, 9216 * GIB, 313.6e12),
        ("trn3-gen2-ultraserver", 576, 20_736 * GIB, 705.6e12),
    ],
)
def test_cores_add_up_to_the_documented_instance(name, cores, memory, bandwidth):
    """Device memory and bandwidth as the Neuron documentation gives them for whole instances."""
    instance = instance_named(name)

    assert (cores, memory) == (instance.cores, instance.cores * instance.memory)
    assert pytest.approx(bandwidth) == instance.cores * instance.bandwidth


def test_all_names_are_accepted():
    """In capitals too."""
    assert list(instance_names()) == [instance_named(name.upper()).name for name in instance_names()]


@pytest.mark.parametrize(
    ("name", "memory", "degrees"),
    [
        ("inf2.xlarge", 16 * GIB, (1, 2)),
        ("inf2.24xlarge", 16 * GIB, (1, 2, 4, 8, 12)),
        ("inf2.48xlarge", 16 * GIB, (1, 2, 4, 8, 12, 24)),
        ("trn1.32xlarge", 16 * GIB, (1, 2, 8, 16, 32)),
        ("trn2.3xlarge", 24 * GIB, (1, 2, 4)),
        ("trn2.48xlarge", 24 * GIB, (1, 2, 4, 8, 16, 32, 64)),
        ("trn3-gen1-ultraserver", 36 * GIB, (1, 2, 4, 8, 16, 32, 64, 128, 256)),
    ],
)
def test_a_core_has_its_memory_and_the_degrees_end_with_the_cores(name, memory, degrees):
    """16 GiB per NeuronCore-v2, 24 per logical NeuronCore-v3."""
    instance = instance_named(name)

    assert (memory, degrees) == (instance.memory, instance.degrees)


def test_logical_cores_share_memory_and_bandwidth():
    """With LNC=1 there are twice as many cores with half of memory and bandwidth each."""
    single, double = instance_named("trn2.48xlarge", 1), instance_named("trn2.48xlarge", 2)

    assert (128, 12 * GIB, 2 * single.bandwidth) == (single.cores, single.memory, double.bandwidth)
    assert instance_named("trn2.48xlarge") == double
    assert 128 == single.degrees[-1]


def test_an_unknown_instance_is_refused():
    """The error lists the known ones."""
    with pytest.raises(ValueError, match="'instance' must be one of ") as caught:
        instance_named("p5.48xlarge")

    assert all(name in str(caught.value) for name in instance_names())


@pytest.mark.parametrize(
    ("name", "logical"), [("inf2.xlarge", 2), ("trn2.3xlarge", 4), ("trn2.3xlarge", True)]
)
def test_an_unsupported_logical_config_is_refused(name, logical):
    """At most two cores make a logical one, from Trainium2 on."""
    with pytest.raises(ValueError, match=f"must be 1.*: got {logical}"):
        instance_named(name, logical)
