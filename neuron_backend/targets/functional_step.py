"""A step that owns its cache and writes it out of place, for compilers of XLA graphs."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..cache import CacheBuffers, out_of_place
from ..step import DecoderStep
from ..weights import adopt

MODEL = "step.model."
"""Before the model's own name of a weight: its name in a :class:`FunctionalStep`."""


class FunctionalStep(nn.Module):
    """
    A :class:`~..step.DecoderStep` as ``(ids, cache_pos, slots) -> (logits, *cache)``.

    The cache belongs to the module, as parameters: the state tensors that ``torch_neuronx.trace``
    keeps on the device when it is told which output each of them becomes. All integers are int32,
    as the device has them.
    """

    def __init__(self, step: DecoderStep, cache: CacheBuffers):
        """
        Share the weights of *step*; start from an empty cache.

        Args:
            step: What to run. Its modules are copied: who traces this one may move it to a device,
                and *step* stays where it is.

            cache: Says shapes and dtype; not written.
        """
        super().__init__()
        model = adopt(step.model)
        # Of the ways to run a mixture of experts the one whose shapes depend on no data.
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("batched_mm")
        self.step = DecoderStep(model, step.scored_width, step.kept)
        self._states = state_names(cache)
        for name, tensor in zip(self._states, cache.tensors, strict=True):
            self._register(name, torch.zeros_like(tensor, device="cpu"))

    def _register(self, name: str, tensor: Tensor) -> None:
        self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    @property
    def states(self) -> dict[str, Tensor]:
        """The cache by name, in the order of :attr:`~..cache.CacheBuffers.tensors`."""
        return {name: getattr(self, name) for name in self._states}

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

    def forward(self, ids: Tensor, cache_pos: Tensor, slots: Tensor) -> tuple[Tensor, ...]:
        """
        Score the tokens; the cache that holds them comes back after the logits.

        Args:
            ids: Tokens, ``[batch, width]`` int32; -1 is padding.

            cache_pos: Position of the first column, ``[batch]`` int32.

            slots: :meth:`~..cache.CacheBuffers.addresses` of a span that holds every position, int32.

        Returns:
            ``[batch, width or kept, vocab]`` float32, and the tensors of :attr:`states` anew.
        """
        logits, cache = self.step.score(ids, cache_pos, slots, tuple(self.states.values()), out_of_place)
        return logits, *cache


class ReassigningStep(FunctionalStep):
    """
    The same as ``(ids, cache_pos, slots) -> logits``, with buffers that take the new cache by name.

    That is the only way in which NxD's ModelBuilder v2 knows a state (AWS Neuron SDK, `ModelBuilderV2
    API Reference`, in-place buffer updates: buffers out of place, neither parameters nor writes in place).
    """

    def _register(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor)

    def forward(self, ids: Tensor, cache_pos: Tensor, slots: Tensor) -> Tensor:  # type: ignore[override]
        """Score the tokens and keep them; as :meth:`FunctionalStep.forward`."""
        logits, *cache = super().forward(ids, cache_pos, slots)
        for name, tensor in zip(self._states, cache, strict=True):
            setattr(self, name, tensor)
        return logits


def state_names(cache: CacheBuffers) -> tuple[str, ...]:
    """Of each of the cache's tensors."""
    layers = range(len(cache.keys))
    return (*(f"keys_{layer}" for layer in layers), *(f"values_{layer}" for layer in layers))


def padding(cache: CacheBuffers, width: int, span: int) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs of a forward of *width* over padding alone: what it is traced with."""
    batch_size = cache.keys[0].shape[0]
    return (
        torch.full((batch_size, width), -1, dtype=torch.int32),
        torch.zeros(batch_size, dtype=torch.int32),
        cache.addresses(span).int(),
    )
