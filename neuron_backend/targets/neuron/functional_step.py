"""Steps that own their cache and write it out of place, for compilers of XLA graphs."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from ....decoding.protocols import DecoderShape
from ...kv_cache.buffers import CacheBuffers, out_of_place
from ...lowering.export import lower
from ...lowering.narrow_integers import narrow_integers
from ...lowering.step_graphs import ProgramShape
from ...models.weights import adopt
from ...on_device_sampling.fused_step import FusedStep
from ...step import DecoderStep, TreeStep, score_tree
from .traced_program import to_device

GIVEN = ("given_0", "given_1", "given_2", "given_3", "given_4")
"""Names of what a choice is given: three parts of a history and two tensors of noise at most."""

TREE = ("written", "path")
"""Names of what says how a tree looks."""

SAMPLERS = "samplers"
"""What the names of a choice's constants begin with."""

INPUTS = ("ids", "cache_pos", "slots", *GIVEN, *TREE)
"""What :class:`FunctionalStep` takes, in that order."""

MODEL = "step.model."
"""Before the model's own name of a weight: its name in a :class:`FunctionalStep`."""


class FunctionalStep(nn.Module):
    """
    A :class:`~...step.DecoderStep` as ``(ids, cache_pos, slots) -> (logits, *cache)``.

    With more inputs it is one that chooses, ``-> (chosen, logits, *cache)``, or one of a tree. One
    module is all of them, because programs that share a cache are traced from one module.

    The cache belongs to the module, as parameters: the state tensors that ``torch_neuronx.trace``
    keeps on the device when it is told which output each of them becomes. All integers are int32,
    as the device has them.
    """

    def __init__(
        self,
        step: DecoderStep,
        cache: CacheBuffers,
        samplers: Mapping[int, nn.Module] | None = None,
        num_given: int = 0,
    ):
        """
        Share the weights of *step*; start from an empty cache.

        Args:
            step: What to run. Its modules are copied: who traces this one may move it to a device,
                and *step* stays where it is.

            cache: Says shapes and dtype; not written.

            samplers: By width, what chooses in forwards that are given what it takes: a
                :func:`lower_sampling`.

            num_given: How many inputs that is.
        """
        super().__init__()
        model = adopt(step.model)
        # Of the ways to run a mixture of experts the one whose shapes depend on no data.
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("batched_mm")
        self.step = DecoderStep(model, step.scored_width, step.kept)
        self.samplers = nn.ModuleDict({str(width): choice for width, choice in (samplers or {}).items()})
        self._num_given = num_given
        self._states = state_names(cache)
        for name, tensor in zip(self._states, cache.tensors, strict=True):
            self._register(name, torch.zeros_like(tensor, device="cpu"))

    @classmethod
    def like(cls, other: "FunctionalStep", cache: CacheBuffers) -> "FunctionalStep":
        """The same as *other*, in this form."""
        samplers = {int(width): choice for width, choice in other.samplers.items()}
        return cls(other.step, cache, samplers, other._num_given)

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

        Among them buffers that a state dict leaves out, such as rotary frequencies: the device has
        to be given those too.
        """
        return {name: tensor.detach() for name, tensor in self._tensors() if name not in self._states}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.named_parameters(remove_duplicate=False)
        yield from self.named_buffers(remove_duplicate=False)

    # An input that is left out is none of the program's, and no open-ended list is traced by NxD.
    def forward(
        self,
        ids: Tensor,
        cache_pos: Tensor,
        slots: Tensor,
        given_0: Tensor | None = None,
        given_1: Tensor | None = None,
        given_2: Tensor | None = None,
        given_3: Tensor | None = None,
        given_4: Tensor | None = None,
        written: Tensor | None = None,
        path: Tensor | None = None,
    ) -> Any:
        """
        Score the tokens; the cache that holds them comes back after the logits.

        Args:
            ids: Tokens, ``[batch, width]`` int32; -1 is padding.

            cache_pos: Position of the first column, ``[batch]`` int32; of a tree that of each,
                ``[batch, width]``.

            slots: :meth:`~...kv_cache.buffers.CacheBuffers.addresses` of a span that holds every position, int32.

            given_0: What a choice takes beside the logits, in its order, integers as int32: here the
                first of it.

            given_1: The second.

            given_2: The third.

            given_3: The fourth.

            given_4: The fifth.

            written: The address that each column of a tree is written to, ``[batch, width]`` int32.

            path: The columns of a tree on the way to each, ``[batch, width, width]``, 1 or 0, int32.

        Returns:
            Where there is a choice, ``[batch, columns]`` int32; ``[batch, width or kept, vocab]``
            float32; and the tensors of :attr:`states` anew.
        """
        cache = tuple(self.states.values())
        if written is not None and path is not None:
            logits, cache = score_tree(
                self.step.model, self.step.plan, ids, cache_pos, written, path > 0, slots, cache, out_of_place
            )
            return self._give((logits,), cache)
        logits, cache = self.step.score(ids, cache_pos, slots, cache, out_of_place)
        given = [one for one in (given_0, given_1, given_2, given_3, given_4) if one is not None]
        width = str(ids.shape[1])
        # A choice that takes nothing but logits is made in every forward of its width.
        if width in self.samplers and len(given) == self._num_given:
            return self._give((self.samplers[width](logits, *given), logits), cache)
        return self._give((logits,), cache)

    def _give(self, outputs: tuple[Tensor, ...], cache: tuple[Tensor, ...]) -> Any:
        return *outputs, *cache


class ReassigningStep(FunctionalStep):
    """
    The same with buffers that take the new cache by name, so that it is not given back.

    That is the only way in which NxD's ModelBuilder v2 knows a state (AWS Neuron SDK, `ModelBuilderV2
    API Reference`, in-place buffer updates: buffers out of place, neither parameters nor writes in place).
    """

    def _register(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor)

    def _give(self, outputs: tuple[Tensor, ...], cache: tuple[Tensor, ...]) -> Any:
        for name, tensor in zip(self._states, cache, strict=True):
            setattr(self, name, tensor)
        return outputs[0] if len(outputs) == 1 else outputs


def state_names(cache: CacheBuffers) -> tuple[str, ...]:
    """Of each of the cache's tensors."""
    layers = range(len(cache.keys))
    return (*(f"keys_{layer}" for layer in layers), *(f"values_{layer}" for layer in layers))


def named(kind: str, *inputs: Tensor) -> dict[str, Tensor]:
    """What a program of that *kind* takes before the cache, by name and as the device has it."""
    ids, cache_pos, *others, slots = map(to_device, inputs)
    names = TREE if kind == TreeStep.kind else GIVEN
    return {"ids": ids, "cache_pos": cache_pos, "slots": slots, **dict(zip(names, others, strict=False))}


def padding(shape: ProgramShape, cache: CacheBuffers) -> dict[str, Tensor]:
    """The inputs of a forward of that *shape* over padding alone: what it is traced with."""
    inputs = shape.step.padding(shape.width, cache, shape.span)
    return named(shape.step.kind, *inputs[: -len(cache.tensors)])


class _Sampling(nn.Module):
    """As ``(logits, *given) -> chosen``."""

    def __init__(self, step: FusedStep):
        super().__init__()
        # Not a module of this one: the model is not to be exported.
        self._choose = step.sample

    def forward(self, logits: Tensor, *given: Tensor) -> Tensor:
        return self._choose(logits, given, logits.new_zeros(logits.shape[0], dtype=torch.int64))


def lower_sampling(step: FusedStep, width: int, shape: DecoderShape) -> GraphModule:
    """
    The choice of *step*, in core operations and 32 bits, for tracing through XLA.

    Written down as it is for eager execution, it would reach XLA with numbers of Python in it, which
    are float64 there; here they are tensors, and they can be stored.

    Args:
        step: Whose choice.

        width: Of the forwards that it stands behind.

        shape: Of the decoder.

    Returns:
        From float32 logits and what :meth:`~...on_device_sampling.fused_step.FusedStep.given` makes, integers as
        int32, to ids ``[batch, columns]`` int32.

    Raises:
        OverflowError: It computes with numbers that 32 bits do not hold.
    """
    logits = torch.zeros(shape.batch_size, step.scored(width), shape.vocab_size)
    graph = lower(_Sampling(step), (logits, *step.neutral(width, shape.batch_size)))
    narrow_integers(graph)
    return graph
