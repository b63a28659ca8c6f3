"""The stock model in float32: its text and logits, and how far a peer's logits are from them."""

from collections.abc import Sequence
from pathlib import Path

import attrs
import torch
from torch import Tensor

from ..peers.process import PeerProcess
from ..peers.transformers_peer import peer
from .files import ComparisonFiles
from .settings import Comparison, Entry

_MAX_DIVERGENCE = {32: 1e-4, 16: 1e-2}
"""
Largest mean divergence from the stock model in float32, by bits of a weight. A different function of the same
weights (other rotary positions, a missing norm) diverges by more than 0.1. Formats of fewer bits change the
function: their divergence is reported, not judged.
"""

_SCORED = 32
"""Tokens that are scored."""


@attrs.frozen
class LogitAgreement:
    """How a peer's logits compare with the reference."""

    divergence: float
    """Mean Kullback-Leibler divergence from the stock model in float32, nats a token."""

    same_top_token: float
    """Share of positions whose top token is the stock model's."""


@attrs.frozen(eq=False)
class Reference:
    """Output of the stock model in float32 for the prompts of a comparison."""

    prompts: dict[int, list[int]]
    following: list[int]
    log_probs: Tensor
    """``[scored, vocab]``, the distributions that score each of *following*."""

    ids: list[int]
    """Greedy text after the first prompt."""

    @classmethod
    def of(cls, files: ComparisonFiles, comparison: Comparison) -> "Reference":
        """Run the stock model."""
        rng = torch.Generator().manual_seed(1)
        vocab = comparison.shape.vocab_size
        lengths = (*comparison.prompts, _SCORED)
        drawn = [torch.randint(vocab, (length,), generator=rng).tolist() for length in lengths]
        prompts = dict(zip(comparison.prompts, drawn, strict=False))
        stock = peer({"model": str(files.model), "dtype": "float32", "threads": comparison.threads})
        first = prompts[comparison.prompts[0]]
        file = files.folder / "reference.logits"
        rows = stock.score(first, drawn[-1], str(file))
        text = stock.generate(first, comparison.tokens)["ids"]
        return cls(prompts, drawn[-1], _log_probs(file, rows, vocab), text)

    def agreement(self, entry: Entry, process: PeerProcess, folder: Path) -> LogitAgreement:
        """
        Compare the logits of a peer.

        Raises:
            ValueError: The peer computes another function.
        """
        file = folder / "peer.logits"
        first = next(iter(self.prompts.values()))
        rows = process.ask("score", ids=first, following=self.following, file=str(file))
        expected, found = self.log_probs, _log_probs(file, rows, self.log_probs.shape[1])
        divergence = float((expected.exp() * (expected - found)).sum(dim=-1).mean())
        same = float((expected.argmax(dim=-1) == found.argmax(dim=-1)).double().mean())
        if divergence > _MAX_DIVERGENCE.get(entry.bits, float("inf")):
            raise ValueError(
                f"{entry.name!r} must compute what the stock model computes, with a divergence of at most "
                f"{_MAX_DIVERGENCE[entry.bits]:g}: got {divergence:.3g}"
            )
        return LogitAgreement(divergence, same)

    def same_leading_tokens(self, ids: Sequence[int]) -> int:
        """How many leading tokens of *ids* equal the reference text."""
        pairs = enumerate(zip(ids, self.ids, strict=True))
        return next((i for i, (ours, theirs) in pairs if ours != theirs), len(self.ids))


def _log_probs(file: Path, rows: int, vocab: int) -> Tensor:
    logits = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.float32).view(rows, vocab)
    return logits.double().log_softmax(dim=-1)
