"""Reference implementation of plain decoding, independent of the decode loop."""

import functools
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ...decoding.cache.slots import Slots
from ...decoding.generator import Generator
from ...decoding.history import History
from ...decoding.optional_protocols import AnyDecoder
from ...decoding.protocols import Decoder
from ...decoding.results.events import MAX_LENGTH
from ...decoding.sampling import noise
from ...decoding.scores import Scores
from ...decoding.stopping.composition import begin
from .enumeration import streams_of
from .inverse_transform import softmax


class Logits:
    """Cached logits of a decoder, fed token by token."""

    def __init__(self, decoder: AnyDecoder) -> None:
        if not isinstance(decoder, Decoder):
            rule = "the chain rule must feed one decoder, with forward(ids, cache_pos)"
            raise TypeError(f"{rule}: got {decoder!r}")
        self._decoder = decoder
        self._known: dict[tuple[int, ...], Tensor] = {}

    def after(self, prefix: Sequence[int]) -> Tensor:
        """Logits ``[vocab]`` after *prefix*."""
        if (logits := self._known.get(tuple(prefix))) is None:
            with Slots.of(self._decoder).lock, torch.no_grad():
                logits = self._known[tuple(prefix)] = self._fed(prefix)
                Slots.of(self._decoder).forget()
        return logits

    def _fed(self, prefix: Sequence[int]) -> Tensor:
        shape = self._decoder.shape
        for position, token in enumerate(prefix):
            ids = torch.full((shape.batch_size, shape.widths[0]), -1)
            cache_pos = torch.zeros(shape.batch_size, dtype=torch.int64)
            # The last column is scored at every width.
            ids[0, -1], cache_pos[0] = token, position - shape.widths[0] + 1
            logits = self._decoder.forward(ids, cache_pos)
        return logits[0, -1].float().clone()


def decode_plainly(generator: Generator, rows: list[list[int]], logits: Logits) -> Hashable:
    """Decode *rows* token by token; ids and finish reasons."""
    texts, finishes = [list(row) for row in rows], [""] * len(rows)
    stop, capacity = begin(generator.stop_condition), generator.decoder.shape.max_length + 1
    while "" in finishes:
        going = [row for row, finish in enumerate(finishes) if not finish]
        history = _history(texts, rows, capacity)
        scores = torch.stack([logits.after(text[: capacity - 1]) for text in texts])[:, None]
        if generator.processors is not None:
            scores = generator.processors(scores, history)
        for row in going:
            key = history.random_stream[row], history.length[row, 0], noise.TOKEN, torch.tensor(0)
            if (token := int(noise.draw(*key, softmax(scores[row, 0])))) >= 0:
                texts[row].append(token)
            else:
                finishes[row] = "no_token_left"
        codes = stop(Scores(functools.partial(_same, scores)), _history(texts, rows, capacity))
        for row in going:
            if not finishes[row] and codes[row, 0]:
                finishes[row] = stop.finishes[int(codes[row, 0]) - 1].reason
            elif not finishes[row] and len(texts[row]) == capacity:
                finishes[row] = MAX_LENGTH.reason
    new = (tuple(text[len(row) :]) for text, row in zip(texts, rows, strict=True))
    return tuple(zip(new, finishes, strict=True))


def _same(scores: Tensor) -> Tensor:
    return scores


def _history(texts: list[list[int]], prompts: list[list[int]], capacity: int) -> History:
    """History of rows with the tokens *texts*."""
    ids = torch.zeros(len(texts), 1, capacity, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids[row, 0, : len(text)] = torch.tensor(text)
    length = torch.tensor([[len(text)] for text in texts])
    prompt = torch.tensor([len(row) for row in prompts])
    return History(ids, length, prompt, torch.tensor(streams_of(len(texts))))
