"""Logits that are built on first access."""

from collections.abc import Callable

from torch import Tensor


class Scores:
    """
    The processed logits that a token was sampled from, built on first access.

    They are rarely read, and for a vocabulary of 150,000 building them can cost more than sampling.
    Read them before the decoder's next forward, which invalidates their source. A decoder that samples
    on the device returns its raw logits in this form: they stay there until they are read.
    """

    __slots__ = ("_build", "_logits")

    def __init__(self, build: Callable[[], Tensor]) -> None:
        self._build = build
        self._logits: Tensor | None = None

    @classmethod
    def of(cls, logits: Tensor) -> "Scores":
        """Logits that are there already."""
        scores = cls(lambda: logits)
        scores._logits = logits
        return scores

    @property
    def was_read(self) -> bool:
        """Whether the logits are there."""
        return self._logits is not None

    @property
    def logits(self) -> Tensor:
        """``[batch, width, vocab]``, ``-inf`` where a token is forbidden. Read-only."""
        if self._logits is None:
            self._logits = self._build()
        return self._logits
