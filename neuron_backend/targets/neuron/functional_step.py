"""Steps that own their cache and update it out of place, for tracing through XLA."""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from ....decoding.protocols import DecoderShape
from ...kv_cache.buffers import CacheBuffers
from ...kv_cache.writes import write_copy
from ...lowering.export import lower
from ...lowering.narrow_integers import narrow_to_int32
from ...lowering.step_graphs import ProgramShape
from ...models.weights import copy_sharing_weights
from ...on_device_sampling.fused_step import FusedStep
from ...row_steps import CopyStep, RowStep, copied_marks, copy_rows
from ...step import DecoderStep, TreeStep, score_tree
from .traced_program import to_device

GIVEN = ("given_0", "given_1", "given_2", "given_3", "given_4")
"""Names of a sampler's inputs: at most three parts of a history and two tensors of noise."""

TREE = ("written", "path")
"""Names of the inputs that describe a tree."""

ROW = "row"
"""Name of the input that a forward of one row has."""

SOURCE = "source"
"""Name of the input of copies of rows, besides the slots."""

SAMPLERS = "samplers"
"""Prefix of the names of the samplers' constants."""

INPUTS = ("ids", "cache_pos", "slots", *GIVEN, *TREE, ROW, SOURCE)
"""Inputs of :class:`FunctionalStep`, in order."""

MODEL = "step.model."
"""Prefix of a model's weight names in a :class:`FunctionalStep`."""


class FunctionalStep(nn.Module):
    """
    A :class:`~...step.DecoderStep` as ``(ids, cache_pos, slots) -> (logits, *cache)``.

    With more inputs it samples, ``-> (tokens, logits, *cache)``, scores a tree or one row; with *slots* and
    *source* alone it copies rows. One module does all of this, because programs that share a cache are traced
    from one module.

    The cache belongs to the module, as parameters: ``torch_neuronx.trace`` keeps these state tensors on
    the device when it is told which output updates each of them. All integers are int32, as on the
    device.
    """

    def __init__(
        self,
        step: DecoderStep,
        cache: CacheBuffers,
        samplers: Mapping[int, nn.Module] | None = None,
        num_sampling_inputs: int = 0,
    ):
        """
        Share the weights of *step*; start from an empty cache.

        Args:
            step: The step to run. Its modules are copied: tracing may move this module to a device,
                while *step* stays on the host.

            cache: Defines shapes and dtype; not written.

            samplers: By width, the :func:`lower_sampling` for forwards that are given its inputs.

            num_sampling_inputs: Number of these inputs.
        """
        super().__init__()
        model = copy_sharing_weights(step.model)
        # The only implementation of experts whose shapes do not depend on data.
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("batched_mm")
        self.step = DecoderStep(model, step.scored_width, step.kept)
        self.samplers = nn.ModuleDict({str(width): sampler for width, sampler in (samplers or {}).items()})
        self._num_sampling_inputs = num_sampling_inputs
        self._states = state_names(cache)
        for name, tensor in zip(self._states, cache.tensors, strict=True):
            self._register(name, torch.zeros_like(tensor, device="cpu"))

    @classmethod
    def like(cls, other: "FunctionalStep", cache: CacheBuffers) -> "FunctionalStep":
        """A copy of *other* of this class."""
        samplers = {int(width): sampler for width, sampler in other.samplers.items()}
        return cls(other.step, cache, samplers, other._num_sampling_inputs)

    def _register(self, name: str, tensor: Tensor) -> None:
        self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    @property
    def states(self) -> dict[str, Tensor]:
        """The cache by name, in the order of :attr:`~...kv_cache.buffers.CacheBuffers.tensors`."""
        return {name: tensor for name, tensor in self._tensors() if name in self._states}

    @property
    def weights(self) -> dict[str, Tensor]:
        """
        Every other tensor, by each of its names.

        Includes buffers outside the state dict, such as rotary frequencies, which the device needs too.
        """
        return {name: tensor.detach() for name, tensor in self._tensors() if name not in self._states}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.named_parameters(remove_duplicate=False)
        yield from self.named_buffers(remove_duplicate=False)

    # Inputs left out are not part of a program. They are listed one by one, since NxD cannot trace *args.
    def forward(
        self,
        ids: Tensor | None = None,
        cache_pos: Tensor | None = None,
        slots: Tensor | None = None,
        given_0: Tensor | None = None,
        given_1: Tensor | None = None,
        given_2: Tensor | None = None,
        given_3: Tensor | None = None,
        given_4: Tensor | None = None,
        written: Tensor | None = None,
        path: Tensor | None = None,
        row: Tensor | None = None,
        source: Tensor | None = None,
    ) -> Any:
        """
        Score the tokens, and return the updated cache after the logits.

        Args:
            ids: Tokens, ``[batch, width]`` int32; -1 is padding.

            cache_pos: Position of the first column, ``[batch]`` int32; in a tree that of each column,
                ``[batch, width]``.

            slots: :meth:`~...kv_cache.buffers.CacheBuffers.addresses` of a span that holds every
                position, int32.

            given_0: The first of the sampler's inputs besides the logits; integers are int32.

            given_1: The second.

            given_2: The third.

            given_3: The fourth.

            given_4: The fifth.

            written: The address that each column of a tree is written to, ``[batch, width]`` int32.

            path: 1 for each column's ancestors in a tree, else 0, ``[batch, width, width]`` int32.

            row: The only row that is fed, ``[1]`` int32; *ids* and *cache_pos* are then those of one row.

            source: The row that each row becomes a copy of, ``[batch]`` int32.

        Returns:
            Sampled tokens ``[batch, columns]`` int32, if it samples; logits
            ``[batch, width or kept, vocab]`` float32, or what a :class:`~...row_steps.CopyStep` returns; and
            the updated tensors of :attr:`states`.
        """
        cache = tuple(self.states.values())
        assert slots is not None
        if source is not None:
            copied = copy_rows(source, slots, cache)
            return self._give((copied_marks(copied, slots),), copied)
        assert ids is not None
        assert cache_pos is not None
        if written is not None and path is not None:
            logits, cache = score_tree(
                self.step.model, self.step.plan, ids, cache_pos, written, path > 0, slots, cache, write_copy
            )
            return self._give((logits,), cache)
        logits, cache = self.step.score(ids, cache_pos, slots, cache, write_copy, row)
        given = [one for one in (given_0, given_1, given_2, given_3, given_4) if one is not None]
        width = str(ids.shape[1])
        # A sampler without further inputs runs in every forward of all rows of its width.
        if row is None and width in self.samplers and len(given) == self._num_sampling_inputs:
            return self._give((self.samplers[width](logits, *given), logits), cache)
        return self._give((logits,), cache)

    def _give(self, outputs: tuple[Tensor, ...], cache: tuple[Tensor, ...]) -> Any:
        return *outputs, *cache


class ReassigningStep(FunctionalStep):
    """
    A :class:`FunctionalStep` that assigns the updated cache to its buffers instead of returning it.

    NxD's ModelBuilder v2 knows no other form of state (AWS Neuron SDK, `ModelBuilderV2 API Reference`,
    in-place buffer updates: reassigned buffers, neither parameters nor writes in place).
    """

    def _register(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor)

    def _give(self, outputs: tuple[Tensor, ...], cache: tuple[Tensor, ...]) -> Any:
        for name, tensor in zip(self._states, cache, strict=True):
            setattr(self, name, tensor)
        return outputs[0] if len(outputs) == 1 else outputs


_NAMES = {
    TreeStep.kind: ("ids", "cache_pos", *TREE),
    RowStep.kind: ("ids", "cache_pos", ROW),
    CopyStep.kind: (SOURCE,),
}


def state_names(cache: CacheBuffers) -> tuple[str, ...]:
    """Names of the cache's tensors."""
    layers = range(len(cache.keys))
    return (*(f"keys_{layer}" for layer in layers), *(f"values_{layer}" for layer in layers), "overflow")


def named(kind: str, *inputs: Tensor) -> dict[str, Tensor]:
    """The inputs of a program of that *kind* before the cache, by name, with the device's dtypes."""
    *others, slots = map(to_device, inputs)
    names = _NAMES.get(kind, ("ids", "cache_pos", *GIVEN))
    given = {**dict(zip(names, others, strict=False)), "slots": slots}
    # In the order of the signature, for a tracer that takes them by position.
    return {name: given[name] for name in INPUTS if name in given}


def padding(shape: ProgramShape, cache: CacheBuffers) -> dict[str, Tensor]:
    """Inputs of a forward of that *shape* with padding only, for tracing."""
    inputs = shape.step.padding(shape.width, cache, shape.span)
    return named(shape.step.kind, *inputs[: -len(cache.tensors)])


class _Sampling(nn.Module):
    """A step's sampling as ``(logits, *given) -> tokens``."""

    def __init__(self, step: FusedStep):
        super().__init__()
        # The method, not the module, so that the model is not exported.
        self._sample = step.sample

    def forward(self, logits: Tensor, *given: Tensor) -> Tensor:
        return self._sample(logits, given, logits.new_zeros(logits.shape[0], dtype=torch.int64))


def lower_sampling(step: FusedStep, width: int, shape: DecoderShape) -> GraphModule:
    """
    Lower the sampling of *step* to core operations and 32 bits, for tracing through XLA.

    In eager form, its Python numbers would be float64 in XLA; lowered, they are tensors, which can also
    be saved.

    Args:
        step: Step with the processors and the sampler.

        width: Width of the forwards.

        shape: Shape of the decoder.

    Returns:
        A graph from float32 logits and the results of
        :meth:`~...on_device_sampling.fused_step.FusedStep.sampling_inputs`, integers as int32, to tokens
        ``[batch, columns]`` int32.

    Raises:
        OverflowError: It computes with integers that do not fit into 32 bits.
    """
    logits = torch.zeros(shape.batch_size, step.scored(width), shape.vocab_size, dtype=torch.float32)
    graph = lower(_Sampling(step), (logits, *step.neutral_inputs(width, shape.batch_size)))
    narrow_to_int32(graph)
    _register_constants(graph)
    return graph


def _register_constants(graph: GraphModule) -> None:
    """Make plain tensors of *graph*, such as biases, buffers, which follow it to a device."""
    buffers = dict(graph.named_buffers())
    for target in {str(node.target) for node in graph.graph.find_nodes(op="get_attr")} - buffers.keys():
        path, _, name = target.rpartition(".")
        owner = graph.get_submodule(path)
        value = attrgetter(target)(graph)
        delattr(owner, name)
        # Of its own memory: what is saved must not share any.
        owner.register_buffer(name, value.contiguous().clone())
