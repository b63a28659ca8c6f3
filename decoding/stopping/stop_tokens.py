"""Stop tokens."""

from typing import Any, ClassVar

import attrs
import numpy as np
import torch
from attrs import validators
from torch import Tensor

from ..history import History
from ..optional_protocols import TokenCode, has_short_cuts
from ..protocols import Finish
from ..scores import Scores
from ..validation import token_ids
from .composition import Stop
from .newest_token import newest


def _ids(value: Any) -> tuple[int, ...]:
    return token_ids("ids", value)


@has_short_cuts
@attrs.frozen(eq=False)
class StopTokens(Stop):
    """End a row with any of the tokens *ids*."""

    ids: tuple[int, ...] = attrs.field(converter=_ids)
    hide: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """Whether the token is left out of the text. The ids keep it."""

    reason: ClassVar[str] = "stop_token"

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One for each token."""
        return tuple(Finish(self.reason, matched=i, hide=self.hide) for i in self.ids)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        hit = newest(history).numpy()[..., None] == np.array(self.ids)
        return torch.from_numpy(np.where(hit.any(axis=-1), hit.argmax(axis=-1) + 1, 0))

    def by_token(self) -> TokenCode:
        """The code of one token."""
        # Of duplicate ids the first counts.
        codes = {token: i + 1 for i, token in reversed(list(enumerate(self.ids)))}
        return lambda token, length, prompt, row: codes.get(token, 0)
