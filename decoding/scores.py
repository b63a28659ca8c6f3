"""Logits that are built when somebody reads them."""

from collections.abc import Callable

from torch import Tensor


class Scores:
    """
    The processed logits that a choice was made from, built when somebody reads them.

    Few do, and for a vocabulary of 150,000 building them can cost more than the choice. Read
    them before the decoder's next forward, which ends the life of what they are made of. A decoder
    that chooses gives its raw logits so: they stay on the device until they are wanted.
    """

    def __init__(self, build: Callable[[], Tensor]) -> None:
        self._build = build
        self._logits: Tensor | None = None

    @property
    def logits(self) -> Tensor:
        """``[batch, width, vocab]``, ``-inf`` where a token is forbidden. Not to be written to."""
        if self._logits is None:
            self._logits = self._build()
        return self._logits
