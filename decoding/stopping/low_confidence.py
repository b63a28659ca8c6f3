"""A probability threshold."""

import attrs
from torch import Tensor

from ..history import History
from ..protocols import Finish
from ..scores import Scores
from ..validation import as_real, one_real
from .composition import Stop
from .newest_token import newest


@attrs.frozen(eq=False)
class LowConfidence(Stop):
    """
    End a row at a token that was sampled with a probability below *p*.

    The probability is that of the softmax of the processed logits, which take time to build: a top-k
    raises it, and at low temperature it is near 1 wherever one token dominates.
    """

    p: float = attrs.field(converter=as_real, validator=one_real("in (0, 1]", lambda p: 0 < p <= 1))
    """A token of lower probability is the row's last."""

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One."""
        return (Finish("low_confidence"),)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        logprobs = scores.logits.cpu().log_softmax(dim=-1)
        # Undefined in a row without tokens.
        tokens = newest(history).clamp(0, logprobs.shape[-1] - 1)
        return (logprobs.gather(-1, tokens[..., None])[..., 0].exp() < self.p).long()
