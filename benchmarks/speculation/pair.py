"""Target and draft of the benchmark: the bundled pair, the target enlarged, compiled, with timed forwards."""

import time
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from ...decoding.optional_protocols import does_skip_padding
from ...neuron_backend import StaticDecoder, compile_decoder, load_decoder
from ...neuron_backend.models.weights import dtype_name
from ..measuring.machine import backend_digest
from ..models.bundled_pair import pair_folder
from ..models.enlarge import SMOLLM2_135M, enlarge

MAX_LENGTH, PREFILL = 1024, 64
WIDTHS, BATCH_WIDTHS, DRAFT_WIDTHS = (1, 2, 3, 5, 9), (1, 2, 3, 5), (1, 2)
"""Scored widths; a batch computes more for each column, so it gets fewer."""

SecondsByWidth = dict[int, list[float]]
"""Seconds of every forward, by its width."""


@attrs.frozen(eq=False)
class TimedDecoder:
    """A decoder that times its forwards inside a run."""

    decoder: StaticDecoder
    seconds: SecondsByWidth = attrs.field(factory=dict)

    @property
    def shape(self) -> Any:
        """The decoder's."""
        return self.decoder.shape

    @property
    def skips_padding(self) -> bool:
        """The decoder's."""
        return does_skip_padding(self.decoder)

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """The decoder's."""
        start = time.perf_counter()
        logits = self.decoder.forward(ids, cache_pos)
        self.seconds.setdefault(ids.shape[1], []).append(time.perf_counter() - start)
        return logits

    def take_seconds(self) -> SecondsByWidth:
        """Return and clear what was timed since the last call."""
        seconds = dict(self.seconds)
        self.seconds.clear()
        return seconds


@attrs.frozen(eq=False)
class NegatedDecoder:
    """A draft with negated logits: as expensive as the draft, and always wrong."""

    decoder: Any

    @property
    def shape(self) -> Any:
        """The draft's."""
        return self.decoder.shape

    def forward(self, ids: Tensor, cache_pos: Tensor) -> Tensor:
        """The draft's logits, negated."""
        logits: Tensor = self.decoder.forward(ids, cache_pos)
        return -logits


@attrs.frozen(eq=False)
class Pair:
    """Target and draft, as models of transformers and compiled for one number of rows."""

    models: tuple[LlamaForCausalLM, LlamaForCausalLM]
    target: TimedDecoder
    draft: TimedDecoder


def models(dtype: str) -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """The bundled target, enlarged, and the bundled draft; without end-of-sequence tokens."""
    small, draft = (
        AutoModelForCausalLM.from_pretrained(pair_folder() / name, dtype=dtype).train(False)
        for name in ("target", "draft")
    )
    target = enlarge(small, **SMOLLM2_135M, max_position_embeddings=MAX_LENGTH)
    draft.config.max_position_embeddings = MAX_LENGTH
    for model in (target, draft):
        model.config.eos_token_id = model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
    return target, draft


def compiled(
    model: LlamaForCausalLM,
    name: str,
    widths: tuple[int, ...],
    batch: int,
    cache: Path | None,
    threads: int | None = None,
    weights: str | None = None,
) -> StaticDecoder:
    """*model* compiled for *batch* rows, loaded from the folder *cache* if it is kept there."""
    all_widths = (*widths, PREFILL)
    shape: dict[str, Any] = {
        "batch_size": batch,
        "max_length": MAX_LENGTH,
        "widths": all_widths,
        "scored_width": widths[-1],
    }
    if cache is None:
        return compile_decoder(model, target="cpu", threads=threads, weights=weights, **shape)
    key = f"{name}-{dtype_name(model.dtype)}-{weights}-{backend_digest()}"
    folder = cache / f"{key}-b{batch}-w{'_'.join(map(str, all_widths))}"
    if not folder.exists():
        compile_decoder(model, target="cpu", weights=weights, **shape).save(folder)
    decoder = load_decoder(folder)
    decoder.threads = threads
    return decoder
