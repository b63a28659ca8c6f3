"""Hugging Face stopping criteria as stop conditions."""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import attrs
import torch
from attrs import validators
from torch import Tensor

from ..history import History
from ..protocols import Finish
from ..scores import Scores
from ..stopping.composition import Stop
from ..stopping.stop_when import as_bools

Criterion: TypeAlias = Callable[..., Any]
"""As ``transformers.StoppingCriteria``: ids ``[1, length]`` and scores or None to a bool, or to ``[1]``."""

_REFUSED = {
    "EncoderExhaustedCriteria": "it depends on the state of the model's encoder",
    "PocketTTSEosThresholdCriteria": "it counts its calls",
}


def stop_from_transformers(
    criteria: Criterion | Iterable[Criterion], *, scores: bool = False
) -> "TransformersCriteria":
    """
    A ``transformers.StoppingCriteria``, a ``StoppingCriteriaList`` or a function as a stop condition.

    Each criterion is called for each row and each new token, with the row's tokens up to that one,
    prompt included, ``[1, length]``. So speculation works, rows end one by one, and there is no
    padding, but a criterion sees every row as row 0 of its batch. It must be a function of its
    arguments: rows take turns, and some tokens are dropped later.

    The built-in conditions are faster: :class:`~..stopping.end_of_sequence.EndOfSequence`,
    :class:`~..stopping.max_length.MaxLength`, :class:`~..stopping.stop_strings.StopStrings`,
    :class:`~..stopping.low_confidence.LowConfidence`, and :class:`~..stopping.max_time.MaxTime`,
    whose clock starts with every call, while Hugging Face's starts when it is built.

    Args:
        criteria: Callable as ``criterion(input_ids, scores)``, giving a bool, of Python's or as
            an array of one; or a list of such. The finish's ``matched`` is the index of the criterion
            that ended the row, the first if several did.

        scores: Whether they read the scores. If so, they get a tuple of one, the processed logits
            ``[1, vocab]`` that the newest token was sampled from, which take time to build; earlier
            ones are not available. Otherwise None, as ``generate`` gives by default.

    Raises:
        TypeError: Not callable.

        ValueError: A Hugging Face criterion that depends on more than its arguments;
            ``ConfidenceCriteria`` without *scores*.
    """
    return TransformersCriteria(criteria, scores)


def _as_tuple(criteria: Any) -> Any:
    # A StoppingCriteriaList is both a list and callable.
    return tuple(criteria) if isinstance(criteria, list | tuple) else (criteria,)


def _classes(criterion: Criterion) -> set[str]:
    return {kind.__name__ for kind in type(criterion).__mro__}


def _check(instance: "TransformersCriteria", attribute: "attrs.Attribute[Any]", criteria: Any) -> None:
    if not criteria or any(isinstance(one, type) or not callable(one) for one in criteria):
        raise TypeError(f"'criteria' must be callable as criterion(input_ids, scores): got {criteria!r}")
    for one in criteria:
        names = _classes(one)
        for name in _REFUSED.keys() & names:
            raise ValueError(
                f"'criteria' must be functions of the ids and the scores: got {one!r}; {_REFUSED[name]}"
            )
        if "ConfidenceCriteria" in names and not instance.scores:
            raise ValueError(f"'scores' must be True for {one!r}, which looks at them: got False")


@attrs.frozen(eq=False)
class TransformersCriteria(Stop):
    """The result of :func:`stop_from_transformers`."""

    criteria: tuple[Criterion, ...] = attrs.field(converter=_as_tuple, validator=_check)
    """The criteria."""

    scores: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """Whether they get the scores."""

    @property
    def finishes(self) -> tuple[Finish, ...]:
        """One for each criterion."""
        return tuple(Finish("stopping_criteria", matched=number) for number in range(len(self.criteria)))

    @property
    def decides_by_time(self) -> bool:
        """Whether a criterion is a ``MaxTimeCriteria``; others are not known to read a clock."""
        return any("MaxTimeCriteria" in _classes(one) for one in self.criteria)

    def __call__(self, scores: Scores, history: History) -> Tensor:
        """Codes ``[batch, width]``."""
        batch, width = history.length.shape
        codes = torch.zeros_like(history.length)
        for row in range(batch):
            for column in range(width):
                ids = history.before(row, column)[None]
                seen = (scores.logits[row, column][None].clone().cpu(),) if self.scores else None
                codes[row, column] = self._first(ids, seen)
        return codes

    def _first(self, ids: Tensor, scores: tuple[Tensor] | None) -> int:
        """The code of the first criterion that holds."""
        for code, criterion in enumerate(self.criteria, start=1):
            if _holds(criterion, criterion(ids.clone(), scores)):
                return code
        return 0


def _holds(criterion: Criterion, result: Any) -> bool:
    ends = as_bools(result)
    if ends is None or ends.numel() != 1:
        raise TypeError(f"a criterion must give a bool, or [1] of them: got {result!r} from {criterion!r}")
    return bool(ends)
