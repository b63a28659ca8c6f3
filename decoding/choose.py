"""A chain of processors and a selection, as one."""

import attrs
import torch
from torch import Tensor

from .history import History
from .protocols import Processor, Selection


@attrs.frozen(eq=False)
class Choose:
    """Run *processors*, if any, and let *selection* choose from what they leave."""

    processors: Processor | None
    selection: Selection

    def __call__(self, logits: Tensor, history: History) -> tuple[Tensor, Tensor]:
        """
        Choose in each column.

        Args:
            logits: Raw logits, ``[batch, width, vocab]``; not modified.

            history: The tokens before each column.

        Returns:
            Ids ``[batch, width]``, -1 in a column whose scores are all ``-inf`` or NaN, and the
            processed scores, ``[batch, width, vocab]``.

        Raises:
            ValueError: A part gave something of another shape.
        """
        scores = logits if self.processors is None else self.processors(logits, history)
        _check_shape("processors", self.processors, scores, logits.shape)
        ids = self.selection(scores, history)
        _check_shape("selection", self.selection, ids, logits.shape[:2])
        best = scores.gather(-1, ids[..., None]).squeeze(-1)
        # A comparison with NaN is false as well, so garbage is never taken for a choice.
        return torch.where(best > -torch.inf, ids, -1), scores

    def emptied_by(self, logits: Tensor, history: History, row: int, column: int) -> str:
        """Name the stage after which one *column* of *row* has no choice; arguments as in a call."""
        if _has_choice(logits[row, column]):
            alone = () if self.processors is None else (self.processors,)
            for stage in getattr(self.processors, "processors", alone):
                logits = stage(logits, history)
                if not _has_choice(logits[row, column]):
                    return _blame(repr(stage), logits[row, column])
            return repr(self.selection)
        return _blame("the decoder", logits[row, column])


def _check_shape(name: str, part: object, result: object, shape: torch.Size) -> None:
    found = list(result.shape) if isinstance(result, Tensor) else result
    if found != list(shape):
        raise ValueError(
            f"'{name}' must give a tensor of the shape {list(shape)}: got {found!r} from {part!r}"
        )


def _has_choice(logits: Tensor) -> bool:
    return bool((logits > -torch.inf).any() and not logits.isnan().any())


def _blame(stage: str, logits: Tensor) -> str:
    return f"{stage}, which gave NaN" if logits.isnan().any() else stage
