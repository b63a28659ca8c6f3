"""Drift: KL divergence, greedy agreement and perplexity of a decoder against a reference."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from ...decoding.cache.slots import Slots
from ...decoding.protocols import Decoder
from ...decoding.validation import is_whole
from ..kv_cache.shapes import max_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@attrs.frozen
class Drift:
    """
    Difference between the distributions of a reference and a decoder on given texts.

    Divergences are KL(reference || decoder) in nats: the expected loss of log-probability when a token
    sampled from the reference is scored by the decoder.
    """

    tokens: int
    """Number of positions compared: all but the last of each text."""

    mean_divergence: float
    """Mean KL(reference || decoder) over positions, in nats; 0 for equal distributions."""

    max_divergence: float
    """Largest divergence at a single position, in nats."""

    agreement: float
    """Share of positions where both have the same most likely token."""

    reference_perplexity: float
    """Perplexity of the texts by the reference: exp of the mean negative log-probability of a token."""

    perplexity: float
    """Perplexity of the texts by the decoder."""

    def __str__(self) -> str:
        """One line."""
        return (
            f"KL mean {self.mean_divergence:.3g} max {self.max_divergence:.3g} nats/token, "
            f"greedy agreement {self.agreement:.2%}, perplexity {self.reference_perplexity:.4g} -> "
            f"{self.perplexity:.4g} ({self.tokens} tokens)"
        )


def drift(
    reference: "Decoder | PreTrainedModel",
    decoder: "Decoder | PreTrainedModel",
    texts: Sequence[Sequence[int]],
) -> Drift:
    """
    Compare *decoder* with *reference* on *texts*, teacher-forced.

    Args:
        reference: Usually the decoder or model before quantisation.

        decoder: The decoder or model to compare. The caches of both are overwritten.

        texts: Token ids, at least two each and at most the positions of either. Both score the given texts;
            nothing is generated.

    Raises:
        ValueError: There is no text, one is too short, too long or outside the vocabulary, or the
            vocabularies differ.

        TypeError: *texts* are not lists of ids.
    """
    divergences, agreed, losses = [], [], []
    for ids in _checked(texts, (reference, decoder)):
        for start, expected, found in _both(reference, decoder, ids):
            following = ids[start + 1 : start + 1 + len(expected)]
            divergences.append((expected.exp() * _difference(expected, found)).sum(dim=-1))
            agreed.append(expected.argmax(dim=-1) == found.argmax(dim=-1))
            both = torch.stack([expected, found])
            losses.append(-both.gather(-1, following.expand(2, -1)[..., None])[..., 0])
    divergence, loss = torch.cat(divergences), torch.cat(losses, dim=1).mean(dim=1)
    return Drift(
        tokens=len(divergence),
        mean_divergence=divergence.mean().item(),
        max_divergence=divergence.max().item(),
        agreement=torch.cat(agreed).double().mean().item(),
        reference_perplexity=math.exp(loss[0].item()),
        perplexity=math.exp(loss[1].item()),
    )


def _checked(texts: Iterable[Iterable[int]], models: "Sequence[Decoder | PreTrainedModel]") -> list[Tensor]:
    """*texts* as ``[length]`` int64, checked against the positions and vocabularies of *models*."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise TypeError(f"'texts' must be lists of token ids: got {texts!r}")
    checked = [_ids_of(text) for text in texts]
    shortest = min(map(len, checked), default=None)
    if shortest is None or shortest < 2:
        raise ValueError(
            f"'texts' must be of two ids or more each: got {'none' if shortest is None else shortest}"
        )
    longest, most = max(map(len, checked)), min(map(_positions, models))
    if longest > most:
        raise ValueError(
            f"'texts' must be of {most} ids or fewer each, the positions that fit: got {longest}"
        )
    vocab = min(map(_vocab, models))
    for ids in checked:
        if ids.min() < 0 or ids.max() >= vocab:
            wrong = int(ids[(ids < 0) | (ids >= vocab)][0])
            raise ValueError(f"'texts' must be of ids >= 0 and < {vocab}: got {wrong}")
    return checked


def _ids_of(text: Any) -> Tensor:
    if isinstance(text, str | bytes):
        raise TypeError(f"'texts' must be lists of token ids, which a tokenizer makes: got {text!r}")
    ids = text.tolist() if hasattr(text, "tolist") else text
    if not isinstance(ids, Iterable) or not all(map(is_whole, ids := list(ids))):
        raise TypeError(f"'texts' must be lists of token ids: got {text!r} among them")
    return torch.tensor(ids, dtype=torch.int64)


def _positions(model: "Decoder | PreTrainedModel") -> float:
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        return max_positions(model.config) or math.inf
    return model.shape.max_length


def _vocab(model: "Decoder | PreTrainedModel") -> int:
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        return int(model.config.get_text_config(decoder=True).vocab_size)
    return model.shape.vocab_size


def _difference(expected: Tensor, found: Tensor) -> Tensor:
    # A token of probability 0 in the reference adds nothing.
    return (expected - found).masked_fill(expected.isneginf(), 0.0)


def _both(
    reference: "Decoder | PreTrainedModel", decoder: "Decoder | PreTrainedModel", ids: Tensor
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """First position of each block of positions, and both log-probabilities ``[positions, vocab]``."""
    expected, found = _scores_of(reference, ids), _scores_of(decoder, ids)
    if expected.shape != found.shape:
        raise ValueError(
            f"'decoder' must have the reference's vocabulary, {expected.shape[-1]}: got {found.shape[-1]}"
        )
    for start in range(0, len(expected), _BLOCK):
        block = slice(start, start + _BLOCK)
        yield start, _log_probs(expected[block]), _log_probs(found[block])


_BLOCK = 64
"""Positions that are compared at once, which bounds the memory of float64 logits."""


def _log_probs(scores: Tensor) -> Tensor:
    return scores.double().log_softmax(dim=-1)


def _scores_of(model: "Decoder | PreTrainedModel", ids: Tensor) -> Tensor:
    """Logits ``[positions, vocab]`` after each token but the last."""
    return torch.cat(list(_scores(model, ids)))[:-1]


def _scores(model: "Decoder | PreTrainedModel", ids: Tensor) -> Iterator[Tensor]:
    """Logits ``[columns, vocab]`` of successive positions."""
    from transformers import PreTrainedModel

    if isinstance(model, PreTrainedModel):
        with torch.no_grad():
            yield model(input_ids=ids[None]).logits[0].float()
        return
    shape = model.shape
    width = max(width for width in shape.widths if width <= shape.scored_width)
    # The cache no longer holds a generator's tokens.
    Slots.of(model).forget()
    padding = -len(ids) % width
    rows = torch.full((shape.batch_size, padding + len(ids)), -1)
    rows[0, padding:] = ids
    for start in range(0, rows.shape[1], width):
        cache_pos = torch.full((shape.batch_size,), start - padding)
        logits = model.forward(rows[:, start : start + width].contiguous(), cache_pos)[0].clone()
        yield logits[max(0, padding - start) :]
