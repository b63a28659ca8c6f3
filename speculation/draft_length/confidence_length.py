"""Drafts that end by the draft model's own confidence."""

import attrs
from attrs import validators
from torch import Tensor

from ...decoding.protocols import SpeculationStep
from ...decoding.scores import Scores
from ...decoding.validation import a_whole_number, as_real, one_real


@attrs.frozen
class ConfidenceLength:
    """
    Up to *most* draft tokens, ending after the first that the draft model gives a low probability.

    ``assistant_confidence_threshold`` of transformers, which adapts it where scikit-learn is installed. The
    probability is that under the draft's processed logits, temperature and filters included. The unlikely
    token itself is verified like any other: had it been dropped, drafts would hold likely tokens too often,
    which verifications that compare distributions would not correct.

    Needs a drafter that samples token by token
    (:class:`~decodekit.decoding.optional_protocols.DraftsWhile`): :class:`~decodekit.speculation.DraftModel`.
    Rows of a batch share the draft's forwards, so a draft costs as many as its longest row has tokens.

    >>> import torch
    >>> from decodekit.decoding.scores import Scores
    >>> scores = Scores.of(torch.tensor([[[0.7, 0.2, 0.1]]]).log())
    >>> ConfidenceLength(threshold=0.3).goes_on(torch.tensor([1]), scores).tolist()
    [False]
    """

    most: int = attrs.field(default=8, validator=[a_whole_number, validators.ge(0)])
    """Maximum draft length. The decoder has to score one column more."""

    threshold: float = attrs.field(
        default=0.4, converter=as_real, validator=one_real(">= 0 and <= 1", lambda value: 0 <= value <= 1)
    )
    """The draft ends after a token of a smaller probability; 0 never ends one. Typically 0.2 to 0.6."""

    def __call__(self, rows: int) -> int:
        """The maximum."""
        return self.most

    def goes_on(self, ids: Tensor, scores: Scores) -> Tensor:
        """Whether each row's token of *ids* ``[rows]`` has at least the threshold's probability."""
        logits = scores.logits[:, -1].double()
        probability = logits.softmax(dim=-1).gather(-1, ids.clamp(min=0)[:, None])[:, 0]
        # Logits on a device are compared there.
        return (probability >= self.threshold).cpu()

    def learn(self, outcome: SpeculationStep) -> None:
        """Nothing: the threshold is fixed."""
