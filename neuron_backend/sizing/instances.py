"""
Table of the AWS instances with Neuron devices.

Chips, memory and bandwidth are from the Neuron documentation's architecture pages (SDK 2.29 to 2.33),
which give GiB/s for Inferentia2 and Trainium, and TB/s from Trainium2 on. Tensor-parallel degrees:

- Inferentia2: 2, 4, 8, 12 and 24, "Generative LLM inference with Neuron" (appnotes).
- Trainium: 1, 2, 8, 16 and 32, from the runtime's error message for another degree.
- Trainium2 and 3: powers of two. The documentation lists none; its examples use these.
"""

import attrs

GIB = 2**30
_TERA = 10**12


@attrs.frozen
class Chip:
    """An accelerator."""

    name: str
    cores: int
    """Physical NeuronCores."""

    memory: int
    """Bytes of HBM."""

    bandwidth: int
    """Bytes per second between HBM and the cores."""

    degrees: tuple[int, ...]
    """Supported tensor-parallel degrees."""

    logical: int | None = None
    """
    Default number of physical cores in a logical core (``NEURON_LOGICAL_NC_CONFIG``, LNC), where it is
    configurable; a program sees logical cores only.
    """


_POWERS = tuple(2**exponent for exponent in range(10))
_TRAINIUM = (1, 2, 8, 16, 32)

INFERENTIA2 = Chip("Inferentia2", 2, 32 * GIB, 820 * GIB, (1, 2, 4, 8, 12, 24))
TRAINIUM = Chip("Trainium", 2, 32 * GIB, 820 * GIB, _TRAINIUM)
TRAINIUM2 = Chip("Trainium2", 8, 96 * GIB, 29 * _TERA // 10, _POWERS, logical=2)
TRAINIUM3 = Chip("Trainium3", 8, 144 * GIB, 49 * _TERA // 10, _POWERS, logical=2)

_CHIPS = {
    "inf2.xlarge": (INFERENTIA2, 1),
    "inf2.8xlarge": (INFERENTIA2, 1),
    "inf2.24xlarge": (INFERENTIA2, 6),
    "inf2.48xlarge": (INFERENTIA2, 12),
    "trn1.2xlarge": (TRAINIUM, 1),
    "trn1.32xlarge": (TRAINIUM, 16),
    "trn1n.32xlarge": (TRAINIUM, 16),
    "trn2.3xlarge": (TRAINIUM2, 1),
    "trn2.48xlarge": (TRAINIUM2, 16),
    "trn2u.48xlarge": (TRAINIUM2, 16),
    "trn2-ultraserver": (TRAINIUM2, 64),
    "trn3-gen1-ultraserver": (TRAINIUM3, 64),
    "trn3-gen2-ultraserver": (TRAINIUM3, 144),
}


@attrs.frozen
class Instance:
    """Resources of an instance: equal cores, each with its share of the memory."""

    name: str
    chip: str
    chips: int
    cores: int
    """Logical NeuronCores."""

    memory: int
    """Bytes per core."""

    bandwidth: float
    """Bytes per second and core."""

    degrees: tuple[int, ...]
    """Supported tensor-parallel degrees, ascending."""


def instance_names() -> tuple[str, ...]:
    """Names that :func:`instance_named` accepts."""
    return tuple(_CHIPS)


def instance_named(name: str, logical: int | None = None) -> Instance:
    """
    The instance of that name.

    Args:
        name: One of :func:`instance_names`, in any case.

        logical: Physical cores in a logical core, 1 or 2 (``NEURON_LOGICAL_NC_CONFIG``). Two
            physical cores share a bank of HBM, so that with 1 each gets half of it. None: 2, the
            default of Trainium2 and 3; older chips have no such setting.

    Raises:
        ValueError: There is no such instance, or it does not support *logical*.
    """
    if name.lower() not in _CHIPS:
        raise ValueError(f"'instance' must be one of {', '.join(_CHIPS)}: got {name!r}")
    chip, chips = _CHIPS[name.lower()]
    group = chip.logical or 1
    if logical is not None:
        possible = (1, 2) if chip.logical else (1,)
        if logical not in possible or isinstance(logical, bool):
            choices = " or ".join(map(str, possible))
            raise ValueError(f"'logical' (--lnc) must be {choices} on {chip.name}: got {logical!r}")
        group = logical
    per_chip = chip.cores // group
    cores = per_chip * chips
    return Instance(
        name=name.lower(),
        chip=chip.name,
        chips=chips,
        cores=cores,
        memory=chip.memory // per_chip,
        bandwidth=chip.bandwidth / per_chip,
        degrees=tuple(degree for degree in chip.degrees if degree <= cores),
    )
