"""What a sharded model knows of its ranks."""

from typing import TYPE_CHECKING

from torch import nn

from .parallel_plan import Shard
from .ranks import Ranks

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Sharding(nn.Module):
    """Ranks and shards of a sharded model: a submodule without weights, which copies of the model keep."""

    def __init__(self, ranks: Ranks, shards: dict[str, Shard]):
        super().__init__()
        self.ranks, self.shards = ranks, shards


def sharding_of(model: "PreTrainedModel") -> Sharding | None:
    """The sharding of *model*; None if it is whole."""
    return next((child for child in model.children() if isinstance(child, Sharding)), None)


def ranks_of(model: "PreTrainedModel") -> Ranks | None:
    """The ranks that *model* is sharded over; None if it is whole."""
    sharding = sharding_of(model)
    return None if sharding is None else sharding.ranks
