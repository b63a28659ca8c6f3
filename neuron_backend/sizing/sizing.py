"""
A decoder's memory, number of cores, and upper limit of tokens per second.

Pure arithmetic. A decode step reads the weights once, and the part of the cache that its span attends
to; so memory bandwidth over these bytes is the upper limit of steps per second.
"""

from collections.abc import Sequence

import attrs

from ...decoding.protocols import DecoderShape
from ..quantization.int4_linear import BLOCK, GROUP
from .instances import Instance
from .model_facts import ModelFacts, Weight

STORED_BITS = {"int8": 8, "int4": 4, "float8": 8}
"""Bits per weight of each format of ``compile_decoder(weights=...)``."""


def int8_bytes(outputs: int, inputs: int, itemsize: int) -> int:
    """Bytes of a matrix in int8: one per weight, and a scale per output."""
    return outputs * inputs + outputs * itemsize


def int4_bytes(outputs: int, inputs: int, itemsize: int) -> int:
    """
    Bytes of a matrix in int4: half a byte per weight, and scale and zero for each group of 32 inputs.

    Outputs are padded to blocks of 64. A matrix whose inputs are not whole groups is not quantised.

    >>> int4_bytes(64, 128, 2) - 64 * 128 // 2 == 64 * 4 * (2 + 2)
    True
    """
    if inputs % GROUP:
        return outputs * inputs * itemsize
    padded = -(-outputs // BLOCK) * BLOCK
    return padded * inputs // 2 + padded * (inputs // GROUP) * 2 * itemsize


@attrs.frozen
class Sizing:
    """Sizes of a decoder of *shape* over *model*, in bytes."""

    model: ModelFacts
    shape: DecoderShape
    spans: tuple[int, ...]
    scratch: int = 0
    """Scratch slots for trees: the columns of the widest."""

    storage: str | None = None
    """
    Format of linear layers' matrices: ``"int8"``, ``"int4"``, ``"float8"``, or None for the model's
    dtype. In all formats the output head is int8, and no longer tied to the embedding, which stays.
    """

    @property
    def weight_bytes(self) -> int:
        """Parameters and buffers, each tied tensor once."""
        return sum(map(self._stored, self.model.weights))

    @property
    def cache_bytes(self) -> int:
        """
        Keys and values, with ``2 + scratch`` slots per row besides the positions.

        Marks of overflows, one number per slot, are not counted.

        Layers with a sliding window keep all positions too, since a rewind may need them.
        """
        return self.slots * self._slot_bytes()

    @property
    def slots(self) -> int:
        """Slots per row: the spare slot, scratch, the positions, and the last slot, which stays empty."""
        return 1 + self.scratch + self.shape.max_length + 1

    @property
    def position_bytes(self) -> int:
        """Keys and values of one token."""
        return self._slot_bytes() // self.shape.batch_size

    def core_bytes(self, degree: int = 1) -> int:
        """
        Weights and cache on each of *degree* cores.

        Weights are divided as ``compile_decoder(tp_degree=)`` divides them: what the model's plan leaves out,
        such as norms, and embeddings of some models, is whole on each core. All are divided equally if the
        model has no plan.

        A key/value head is not split: if a model has fewer of them than cores, some cores hold the
        same head.
        """
        return self._core_weights(degree) + self.slots * self._slot_bytes(degree)

    def cores_needed(self, instance: Instance) -> int | None:
        """
        The smallest degree whose cores hold weights and cache; None if all of *instance* do not.

        "Generative LLM inference with Neuron", How many NeuronCores do I need: the sum of both over the
        memory of a core, rounded up to the next degree of the instance. By the developer guide of
        transformers-neuronx, the degree must divide the attention heads.
        """
        clip_widths = (degree for degree in self.degrees(instance) if self.fits(instance, degree))
        return next(clip_widths, None)

    def degrees(self, instance: Instance) -> tuple[int, ...]:
        """The tensor-parallel degrees that *instance* has and that divide the attention heads."""
        return tuple(degree for degree in instance.degrees if self.model.heads % degree == 0)

    def fits(self, instance: Instance, degree: int) -> bool:
        """Whether *degree* cores of *instance* hold it."""
        return self.core_bytes(degree) <= instance.memory

    def step_bytes(self, span: int, degree: int = 1) -> float:
        """
        Bytes that each of *degree* cores reads to decode one token of every row.

        All weights, except one row per token of an embedding, and only the experts that tokens are routed
        to. With random routing to k of E experts, B tokens read ``1 - (1 - k/E)^B`` of the experts, which
        is exact for one row.
        """
        read = sum(self._read(weight, degree) for weight in self.model.weights)
        attended = 1 + self.scratch + span
        return read + attended * self._slot_bytes(degree)

    def tokens_per_second(self, bandwidth: float, span: int, degree: int = 1) -> float:
        """
        Upper limit of tokens per second of all rows together, without speculation.

        Args:
            bandwidth: Bytes per second and core.

            span: Positions attended to.

            degree: Number of cores.
        """
        return self.shape.batch_size * bandwidth / self.step_bytes(span, degree)

    def _stored(self, weight: Weight) -> int:
        return sum(self._parts(weight))

    def _core_weights(self, degree: int) -> int:
        """Bytes of weights on each of *degree* cores."""
        if degree == 1:
            return self.weight_bytes
        divided = whole = 0
        for weight in self.model.weights:
            matrix, table = self._parts(weight)
            if not weight.divided:
                whole += matrix + table
            elif weight.whole_besides:
                # Of a tied embedding, the output head is divided.
                divided, whole = divided + matrix, whole + weight.bytes
            else:
                divided += matrix + table
        return -(-divided // degree) + whole

    def _read(self, weight: Weight, degree: int) -> float:
        """Bytes that each of *degree* cores reads of it to decode one token of every row."""
        matrix, table = self._parts(weight)
        row = table // weight.shape[0] if table else 0
        rows = min(row * self.shape.batch_size, table)
        whole = not weight.divided
        rows_are_whole = whole or weight.whole_besides
        return self._read_share(weight) * matrix / (1 if whole else degree) + rows / (
            1 if rows_are_whole else degree
        )

    def _parts(self, weight: Weight) -> tuple[int, int]:
        """Bytes that are read whole, and bytes of an embedding table."""
        if self.storage is not None and weight.linear:
            stored = int8_bytes if self.storage != "int4" or weight.head else int4_bytes
            outputs, inputs = weight.shape
            return stored(outputs, inputs, weight.itemsize), weight.bytes if weight.embedding else 0
        return (0, weight.bytes) if weight.embedding and not weight.linear else (weight.bytes, 0)

    def _read_share(self, weight: Weight) -> float:
        """Share of it that some token is routed to."""
        experts, active = self.model.experts, self.model.active_experts
        if weight.expert and 0 < active <= experts:
            return 1 - (1 - active / experts) ** self.shape.batch_size
        return 1

    def _slot_bytes(self, degree: int = 1) -> int:
        """Bytes of a slot in all rows and layers, on one of *degree* cores."""
        numbers = sum(
            -(-layer.key_heads // degree) * layer.key_dim + -(-layer.value_heads // degree) * layer.value_dim
            for layer in self.model.geometry.layers
        )
        return self.shape.batch_size * numbers * self.model.geometry.cache_dtype.itemsize


@attrs.frozen
class GuideEstimate:
    """
    Estimate by AWS's guide, from a model's number of layers and width.

    "Generative LLM inference with Neuron", How many NeuronCores do I need. It assumes layers like GPT's
    and OPT's: attention of 4·width² weights, an MLP of 8·width², as many key/value heads as heads.
    Embeddings are left out.
    """

    weight_bytes: int
    """12 · layers · width² · bytes per weight, which are 2 in half precision and 1 in int8."""

    cache_bytes: int
    """batch size · layers · positions · width · 2 · bytes per element."""

    @classmethod
    def of(cls, sizing: Sizing) -> "GuideEstimate":
        """The estimate for the decoder of *sizing*."""
        facts = sizing.model
        layers, itemsize = facts.layers, facts.geometry.cache_dtype.itemsize
        bits = 8 * itemsize if sizing.storage is None else STORED_BITS[sizing.storage]
        return cls(
            weight_bytes=12 * layers * facts.width**2 * bits // 8,
            cache_bytes=sizing.shape.batch_size
            * layers
            * sizing.shape.max_length
            * facts.width
            * 2
            * itemsize,
        )

    def cores_needed(self, instance: Instance, degrees: Sequence[int] | None = None) -> int | None:
        """
        The fewest cores of *instance* that hold it; None if all do not.

        Args:
            instance: The instance.

            degrees: Degrees to choose from, ascending. None: all of the instance's.
        """
        cores = (self.weight_bytes + self.cache_bytes) / instance.memory
        degrees = instance.degrees if degrees is None else degrees
        return next((degree for degree in degrees if degree >= cores), None)
