"""
A model sharded over the ranks of ``torchrun``.

Each rank holds a shard of the weights and of the key/value heads, hence of the KV cache. A shard is used
like any other model: it takes the same ids on every rank and returns the same logits (:mod:`.ranks`).
"""

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..models.unsupported import UnsupportedArchitecture
from ..models.weights import copy_sharing_weights
from ..parity.logits_probe import TOLERANCE
from ..quantization.quantized import Weights
from .lost_ranks import fail_together
from .parallel_layers import AllReduce, Gather, TakeShard, is_rank_buffer, register_rank, shard_embedding
from .parallel_plan import GATHERED, LOOKUPS, ROWS, SPLITTING, SUMMED, Cut, ParallelPlan, Shard
from .process_group import PROGRAM_GROUP
from .ranks import Ranks
from .sharding import Sharding, ranks_of, sharding_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_COMPARED = 24


def load_shard(
    model: "PreTrainedModel | str | PathLike[str]",
    load: "Callable[[str | PathLike[str]], PreTrainedModel]",
    ranks: Ranks | None,
) -> "PreTrainedModel":
    """
    Shard *model*, loaded first if it is a path, for this rank. Every rank calls this.

    Ranks load one after another, so that at most one whole model is in memory at a time.

    Args:
        model: A model, the same on every rank, which is not modified, or the path or hub id of one. A shard
            is returned as it is.

        load: Loads the whole model from a path.

        ranks: The ranks to shard over. None: the whole model is returned.

    Raises:
        UnsupportedArchitecture: It has no tensor-parallel plan, or the shards together do not give its
            logits.

        ValueError: The number of ranks does not divide heads or layers.
    """
    from transformers import PreTrainedModel

    if ranks is None:
        return model if isinstance(model, PreTrainedModel) else load(model)
    if isinstance(model, PreTrainedModel) and ranks_of(model) is not None:
        return model
    if isinstance(model, PreTrainedModel):
        with fail_together(ranks):
            part, expected = shard_model(model, ranks), _logits(copy_sharing_weights(model))
    else:
        for turn in range(ranks.degree):
            with fail_together(ranks):
                if turn == ranks.rank:
                    whole = load(model)
                    part, expected = shard_model(whole, ranks), _logits(copy_sharing_weights(whole))
                    del whole
    _compare(part, expected, ranks)
    return part


def shard_model(model: "PreTrainedModel", ranks: Ranks) -> "PreTrainedModel":
    """
    The shard of a whole *model* for one rank. *model* is not modified.

    Making a shard needs no other rank; running it does, since its layers all-reduce over the process group.

    Raises:
        UnsupportedArchitecture: It has no tensor-parallel plan.

        ValueError: The number of ranks does not divide heads or layers, or weights are quantised.
    """
    stored = Weights.of(model).layers
    if stored:
        name = next(iter(stored))
        raise ValueError(f"a model must have floating weights, to be divided: got {stored[name]} in {name}")
    plan = ParallelPlan.of(model, ranks.degree)
    part = copy_sharing_weights(model)
    made: dict[tuple[int, Shard], nn.Parameter] = {}
    for path, shard in plan.shards.items():
        owner, _, leaf = path.rpartition(".")
        parameter = part.get_parameter(path)
        # Tied weights stay tied.
        key = (id(parameter), shard)
        if key not in made:
            local = shard.local(parameter, ranks.rank, ranks.degree)
            made[key] = nn.Parameter(local, requires_grad=False)
        part.get_submodule(owner).register_parameter(leaf, made[key])
    for path, style in plan.modules.items():
        _install(part.get_submodule(path), style, plan.shards.get(f"{path}.weight"), ranks)
    part.add_module("decodekit_sharding", Sharding(ranks, plan.shards))
    return part


def rank_weights(model: "PreTrainedModel", tp_degree: int) -> list[dict[str, Tensor]]:
    """
    State dicts of the *tp_degree* shards of *model*, by rank: for runtimes that take a list of them.

    All have the same names and shapes, so one program serves all ranks. The names are the model's own, plus
    ``own_rank`` in layers that combine the ranks' outputs (:mod:`.parallel_layers`). A weight that the plan
    does not shard is the same tensor in all of them, and tied parameters are one tensor in each. No process
    group is needed.

    Raises:
        UnsupportedArchitecture: It has no tensor-parallel plan.

        ValueError: *tp_degree* does not divide heads or layers.
    """
    parts = (shard_model(model, Ranks(tp_degree, rank, PROGRAM_GROUP)) for rank in range(tp_degree))
    return [dict(part.state_dict(keep_vars=True)) for part in parts]


def whole_weights(model: "PreTrainedModel") -> dict[str, Tensor]:
    """
    State dict of the whole model, gathered from all shards on rank 0; empty on the others.

    Every rank calls this. Tied parameters are one tensor, as in *model*.
    """
    sharding = sharding_of(model)
    if sharding is None:
        return model.state_dict()
    parts = {
        name: part for name, part in model.state_dict(keep_vars=True).items() if not is_rank_buffer(name)
    }
    made: dict[int, Tensor] = {}
    for name, part in parts.items():
        if id(part) not in made:
            made[id(part)] = _whole(part.detach(), sharding.shards.get(name), sharding.ranks)
    return {name: made[id(part)] for name, part in parts.items()} if sharding.ranks.rank == 0 else {}


def _install(module: nn.Module, style: str, shard: Shard | None, ranks: Ranks) -> None:
    """Add the communication that *style* requires to *module*."""
    if style in GATHERED | SPLITTING | LOOKUPS:
        register_rank(module, ranks)
    if style in LOOKUPS and isinstance(module, nn.Embedding):
        shard_embedding(module, ranks)
    if style in SPLITTING:
        module.register_forward_pre_hook(TakeShard(ranks))
    if style in GATHERED and isinstance(shard, Cut):
        module.register_forward_hook(Gather(ranks, shard.size))
    if style in ROWS | SPLITTING | SUMMED:
        module.register_forward_hook(AllReduce(ranks.group))


def _whole(part: Tensor, shard: Shard | None, ranks: Ranks) -> Tensor:
    if shard is None:
        return part
    pieces = ranks.gather(part)
    return shard.whole(pieces) if pieces else part


def _logits(model: "PreTrainedModel") -> Tensor:
    """Logits of random tokens, ``[1, length, vocab]``."""
    size = int(model.config.get_text_config(decoder=True).vocab_size)
    ids = torch.randint(size, (1, _COMPARED), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    return logits.float()


def _compare(part: "PreTrainedModel", expected: Tensor, ranks: Ranks) -> None:
    """Compare the logits of the shards together with the whole model's."""
    name = type(part).__name__
    try:
        logits = _logits(part)
    except Exception as error:
        raise UnsupportedArchitecture(
            name, f"divided by its tensor-parallel plan it does not run: {error!r}"
        ) from error
    with fail_together(ranks):
        if logits.shape != expected.shape:
            raise UnsupportedArchitecture(
                name,
                "divided by its tensor-parallel plan it gives logits of another shape than the whole model: "
                f"{tuple(logits.shape)} instead of {tuple(expected.shape)}",
            )
        difference = (logits - expected).abs().max().item()
        tolerance = TOLERANCE[part.dtype] * expected.abs().max().item()
        # Also true for NaN.
        if not difference <= tolerance:
            raise UnsupportedArchitecture(
                name,
                f"divided by its tensor-parallel plan it differs from the whole model by {difference:.3g}, "
                f"more than rounding explains ({tolerance:.3g})",
            )
