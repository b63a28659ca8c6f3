"""Decoder over a Hugging Face model with transformers' StaticCache, compiled by torch.compile."""

import copy
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...decoding.forward_checks import check_inputs
from ..kv_cache.buffers import SPARE
from ..kv_cache.masks import MaskPlan, Reach
from ..kv_cache.overflow import without_overflow
from ..kv_cache.shapes import decoder_shape
from ..models.attention_temperature import check_attention_temperature
from ..models.cache_argument import cache_argument
from ..models.rope_scaling import check_rope_scaling
from ..models.unsupported import UnsupportedArchitecture
from ..parity.logits_probe import Probe
from ..parity.widened import compared_length, may_be_widened
from ..step import supports_logits_to_keep
from .per_row_static_cache import PerRowStaticCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Compile = Callable[[Callable[..., Tensor]], Callable[..., Tensor]]
"""A function of tensors to the compiled function."""


_FULL = Reach()
"""Made here: Dynamo does not trace its construction."""


def neuron_compile(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``torch.compile(function, backend="neuron")`` for fixed shapes, as a whole."""
    return torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)


class StaticCacheDecoder:
    """
    A Hugging Face model with a StaticCache as a decoder: the path that PyTorch's and AWS's guides describe.

    The model itself is used, with its own weights and layers, where it lies on its device. Each width is one
    graph, compiled when the decoder is made. Every forward attends to the whole cache; there are no spans,
    trees or sampling on the device, which :func:`~decodekit.neuron_backend.compile_decoder` has.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        batch_size: int = 1,
        max_length: int | None = None,
        widths: Sequence[int] | None = None,
        *,
        scored_width: int | None = None,
        device: torch.device | str = "neuron",
        compile: Compile | None = neuron_compile,  # noqa: A002 (torch's word)
    ) -> None:
        """
        Move *model* to its device, compile every width, and compare with the model's own forward.

        Args:
            model: A Hugging Face causal LM. It is moved to *device* and set to evaluation mode.

            batch_size: Rows of every forward.

            max_length: Positions per row. None: 2048, or the model's own maximum if smaller.

            widths: Columns of the forwards, ascending. None: 1, 5 and 128, limited to *max_length*.

            scored_width: Forwards up to this width score every column, wider ones the last. None: the
                largest width up to 32, else the smallest.

            device: Where the model runs.

            compile: Compiles the forward. None: it runs eagerly.

        Raises:
            UnsupportedArchitecture: The logits differ from the model's own, or its state is not addressed by
                position; or within *max_length* positions, RoPE frequencies or a scale of the queries follow
                from the length of the rows.

            ValueError: An argument is invalid.
        """
        self.shape = decoder_shape(
            model.config,
            vocab_size=model.config.get_text_config(decoder=True).vocab_size,
            batch_size=batch_size,
            max_length=max_length,
            widths=widths,
            scored_width=scored_width,
        )
        check_rope_scaling(model, self.shape.max_length)
        check_attention_temperature(model, self.shape.max_length)
        self._plan = MaskPlan.of(model)
        self._compare_widened(model)
        # Asked here: what is compiled does not read signatures.
        self._cache_argument = cache_argument(model)
        self._keeps_logits = supports_logits_to_keep(model)
        self._model = model.to(device).eval()  # type: ignore[arg-type]  # transformers' own annotation
        self._device = self._model.device
        self._cache = self._empty_cache()
        self._slots = torch.arange(SPARE, self.shape.max_length, device=self._device)
        self._programs: dict[int, Callable[..., Tensor]] = dict.fromkeys(self.shape.widths, self._score)
        self._allocate()
        if compile is not None:
            self._programs = {
                width: compile(_with_own_code(self._score, f"width_{width}")) for width in self.shape.widths
            }
            self._feed_padding(self.shape.widths)
        whose = "the model with a StaticCache"
        Probe.of(self._model, self.shape, self._plan.span).check(self.forward, whose)

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """
        Feed *ids*: write their keys and values into the cache and return the logits of the next tokens.

        Args:
            ids: Tokens to feed, ``[batch, width]`` int64, *width* one of ``shape.widths``; -1 is padding.

            cache_pos: Position of the first column of each row, ``[batch]`` int64.

        Returns:
            Logits ``[batch, width, vocab]`` float32, or ``[batch, 1, vocab]`` of the last column when
            *width* exceeds ``shape.scored_width``.

        Raises:
            ValueError: A wrong width, batch, id or position. Nothing has been written.

            TypeError: A wrong dtype. Nothing has been written.
        """
        check_inputs(ids, cache_pos, self.shape)
        # No inference tensors, in any mode of the caller: a graph that reads one is compiled again.
        with torch.inference_mode(False), torch.no_grad():
            padding = ids < 0
            positions = cache_pos[:, None] + torch.arange(ids.shape[1])
            # The spare slot comes first.
            written = positions.masked_fill(padding, SPARE) - SPARE
            self._cache.write_to(written.to(self._device))
            logits = self._programs[ids.shape[1]](
                ids.masked_fill(padding, 0).to(self._device),
                positions.masked_fill(padding, 0).to(self._device),
                padding.to(self._device),
            )
        return logits.to("cpu", torch.float32)

    def _score(self, ids: Tensor, positions: Tensor, padding: Tensor) -> Tensor:
        """What is compiled: the model over the whole cache."""
        width = ids.shape[1]
        scores_all = width <= self.shape.scored_width
        output: Any = self._model(
            input_ids=ids,
            attention_mask=self._plan.masks(positions, padding, self._slots, self._model.dtype),
            position_ids=positions,
            use_cache=True,
            **{self._cache_argument: self._cache},
            # The head would be the largest cost of a wide prefill.
            **({"logits_to_keep": 1} if self._keeps_logits and not scores_all else {}),
        )
        logits: Tensor = output.logits
        scored = slice(None) if scores_all else slice(-1, None)
        seen = _FULL.sees(positions[:, scored], padding[:, scored], self._slots)
        return without_overflow(logits[:, scored], seen, self._cache.mark_overflow())

    def _compare_widened(self, model: "PreTrainedModel") -> None:
        """Compare a model of 16 bits on the host in float32 too, before it is moved and compiled."""
        if model.device.type == "cpu" and may_be_widened(model):
            StaticCacheDecoder(
                copy.deepcopy(model).to(torch.float32),  # type: ignore[arg-type]  # as above
                self.shape.batch_size,
                compared_length(self.shape, self._plan.span),
                self.shape.widths,
                scored_width=self.shape.scored_width,
                device="cpu",
                compile=None,
            )

    def _empty_cache(self) -> PerRowStaticCache:
        slots = self.shape.max_length + 1
        # Not an inference tensor, in any mode of the caller: later forwards write to it.
        with torch.inference_mode(False):
            marks = torch.zeros(self.shape.batch_size, slots, dtype=self._model.dtype, device=self._device)
        torch._dynamo.mark_static_address(marks)
        return PerRowStaticCache(self._model.config, slots, marks)

    def _allocate(self) -> None:
        """Run the first forward, which allocates the cache; transformers wants that outside of a graph."""
        try:
            self._feed_padding(self.shape.widths[:1])
        except Exception as error:
            raise UnsupportedArchitecture(
                type(self._model).__name__,
                f"it must run with a StaticCache, a mask of four dimensions and positions: got {error}",
            ) from error

    def _feed_padding(self, widths: Sequence[int]) -> None:
        rows = self.shape.batch_size
        for width in widths:
            self.forward(torch.full((rows, width), -1), torch.zeros(rows, dtype=torch.int64))


def _with_own_code(score: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    """
    A function that calls *score*, with a code object of its own.

    Torch gives up on a code object after 8 graphs, those of other decoders included.
    """

    def program(ids: Tensor, positions: Tensor, padding: Tensor) -> Tensor:
        return score(ids, positions, padding)

    code = program.__code__.replace(co_name=name)
    return FunctionType(code, program.__globals__, name, None, program.__closure__)
