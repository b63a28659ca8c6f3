"""
A model divided among the ranks of ``torchrun``.

Each rank holds a part of the weights and a part of the key/value heads, so of the cache as well.
Everything above sees a model like any other: it takes the same ids on every rank and gives
the same logits (:mod:`.ranks`).
"""

from collections.abc import Callable
from os import PathLike
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..models.unsupported import UnsupportedArchitecture
from ..models.weights import adopt
from ..parity.logits_probe import TOLERANCE
from ..quantization.quantized import Weights
from .parallel_layers import Gather, Reduce, TakeShare, divide_lookup, is_rank, mark_rank
from .parallel_plan import GATHERED, LOOKUPS, ROWS, SPLITTING, SUMMED, Cut, ParallelPlan, Share
from .ranks import PROGRAMS, Ranks, each_succeeds

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_COMPARED = 24


def model_of(
    model: "PreTrainedModel | str | PathLike[str]",
    load: "Callable[[str | PathLike[str]], PreTrainedModel]",
    ranks: Ranks | None,
) -> "PreTrainedModel":
    """
    *model*, or what *load* makes of its path; of *ranks*, this one's part. Every rank calls it.

    When ranks load, they take turns, so no more than one whole model is in memory at a time.

    Args:
        model: A model, the same on every rank, which is not modified; one divided already is
            taken as it is.

        load: From a path to the whole model.

        ranks: Among whom it is divided. None: it stays whole.

    Raises:
        UnsupportedArchitecture: It has no plan, or the parts together do not give its logits.

        ValueError: Heads or layers cannot be divided so.
    """
    from transformers import PreTrainedModel

    if ranks is None:
        return model if isinstance(model, PreTrainedModel) else load(model)
    if isinstance(model, PreTrainedModel) and ranks_of(model) is not None:
        return model
    if isinstance(model, PreTrainedModel):
        with each_succeeds(ranks):
            part, expected = divided(model, ranks), _logits(adopt(model))
    else:
        for turn in range(ranks.degree):
            with each_succeeds(ranks):
                if turn == ranks.rank:
                    whole = load(model)
                    part, expected = divided(whole, ranks), _logits(adopt(whole))
                    del whole
    _compare(part, expected, ranks)
    return part


def divided(model: "PreTrainedModel", ranks: Ranks) -> "PreTrainedModel":
    """
    What the rank of *ranks* holds of a whole *model*, which is not modified.

    No other rank is needed for this, but to run it: its layers then sum over the process group.

    Raises:
        UnsupportedArchitecture: It has no plan.

        ValueError: Heads or layers cannot be divided so, or weights are quantised.
    """
    stored = Weights.of(model).layers
    if stored:
        name = next(iter(stored))
        raise ValueError(f"a model must have floating weights, to be divided: got {stored[name]} in {name}")
    plan = ParallelPlan.of(model, ranks.degree)
    part = adopt(model)
    made: dict[tuple[int, Share], nn.Parameter] = {}
    for path, share in plan.shares.items():
        owner, _, leaf = path.rpartition(".")
        parameter = part.get_parameter(path)
        # Tied weights stay so.
        key = (id(parameter), share)
        if key not in made:
            local = share.local(parameter, ranks.rank, ranks.degree)
            made[key] = nn.Parameter(local, requires_grad=False)
        part.get_submodule(owner).register_parameter(leaf, made[key])
    for path, style in plan.modules.items():
        _install(part.get_submodule(path), style, plan.shares.get(f"{path}.weight"), ranks)
    part.add_module("decodekit_division", _Division(ranks, plan.shares))
    return part


def rank_weights(model: "PreTrainedModel", tp_degree: int) -> list[dict[str, Tensor]]:
    """
    The state dicts of the *tp_degree* parts of *model*, by rank: for runtimes that take a list of them.

    All have the same names and shapes, so one program serves all ranks. The names are the model's own,
    and ``own_rank`` in layers that put together what the ranks have (:mod:`.parallel_layers`). What
    the plan does not divide is the same tensor in all of them, and tied parameters are one tensor
    in each. No process group is needed.

    Raises:
        UnsupportedArchitecture: It has no plan.

        ValueError: Heads or layers cannot be divided so.
    """
    parts = (divided(model, Ranks(tp_degree, rank, PROGRAMS)) for rank in range(tp_degree))
    return [dict(part.state_dict(keep_vars=True)) for part in parts]


def whole_weights(model: "PreTrainedModel") -> dict[str, Tensor]:
    """
    The state dict of the whole model of which each rank has a part, on rank 0; nothing on the others.

    Every rank calls it. Tied parameters are one tensor, as they are in *model*.
    """
    division = _division(model)
    if division is None:
        return model.state_dict()
    parts = {name: part for name, part in model.state_dict(keep_vars=True).items() if not is_rank(name)}
    made: dict[int, Tensor] = {}
    for name, part in parts.items():
        if id(part) not in made:
            made[id(part)] = _whole(part.detach(), division.shares.get(name), division.ranks)
    return {name: made[id(part)] for name, part in parts.items()} if division.ranks.rank == 0 else {}


def ranks_of(model: "PreTrainedModel") -> Ranks | None:
    """The ranks among which *model* is divided; None if it is whole."""
    division = _division(model)
    return None if division is None else division.ranks


class _Division(nn.Module):
    """What a divided model carries: a module of its own, without weights, which every copy of it has too."""

    def __init__(self, ranks: Ranks, shares: dict[str, Share]):
        super().__init__()
        self.ranks, self.shares = ranks, shares


def _division(model: "PreTrainedModel") -> _Division | None:
    return next((child for child in model.children() if isinstance(child, _Division)), None)


def _install(module: nn.Module, style: str, share: Share | None, ranks: Ranks) -> None:
    """Let *module* do what its *style* asks for besides."""
    if style in GATHERED | SPLITTING | LOOKUPS:
        mark_rank(module, ranks)
    if style in LOOKUPS and isinstance(module, nn.Embedding):
        divide_lookup(module, ranks)
    if style in SPLITTING:
        module.register_forward_pre_hook(TakeShare(ranks))
    if style in GATHERED and isinstance(share, Cut):
        module.register_forward_hook(Gather(ranks, share.size))
    if style in ROWS | SPLITTING | SUMMED:
        module.register_forward_hook(Reduce(ranks.group))


def _whole(part: Tensor, share: Share | None, ranks: Ranks) -> Tensor:
    if share is None:
        return part
    pieces = ranks.gather(part)
    return share.whole(pieces) if pieces else part


def _logits(model: "PreTrainedModel") -> Tensor:
    """Of some tokens, ``[1, length, vocab]``."""
    size = int(model.config.get_text_config(decoder=True).vocab_size)
    ids = torch.randint(size, (1, _COMPARED), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits: Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    return logits.float()


def _compare(part: "PreTrainedModel", expected: Tensor, ranks: Ranks) -> None:
    """Hold the parts together against the whole."""
    name = type(part).__name__
    try:
        logits = _logits(part)
    except Exception as error:
        raise UnsupportedArchitecture(
            name, f"divided by its tensor-parallel plan it does not run: {error!r}"
        ) from error
    with each_succeeds(ranks):
        if logits.shape != expected.shape:
            raise UnsupportedArchitecture(
                name,
                "divided by its tensor-parallel plan it gives logits of another shape than the whole model: "
                f"{tuple(logits.shape)} instead of {tuple(expected.shape)}",
            )
        difference = (logits - expected).abs().max().item()
        tolerance = TOLERANCE[part.dtype] * expected.abs().max().item()
        # Written so that a NaN refuses as well.
        if not difference <= tolerance:
            raise UnsupportedArchitecture(
                name,
                f"divided by its tensor-parallel plan it differs from the whole model by {difference:.3g}, "
                f"more than rounding explains ({tolerance:.3g})",
            )
