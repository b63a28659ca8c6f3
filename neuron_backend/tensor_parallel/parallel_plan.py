"""
How the weights of a model are divided among ranks, by the model's own tensor-parallel plan.

transformers gives a plan with most architectures: a style for each linear layer. *colwise* divides
the outputs, so attention heads fall whole to one rank or another; *rowwise* divides the inputs, and
the partial products are summed. Shoeybi et al., 2019, `Megatron-LM: Training Multi-Billion Parameter
Language Models Using Model Parallelism <https://arxiv.org/abs/1909.08053>`_, section 3.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import attrs
import torch
from torch import Tensor, nn

from ..models.unsupported import UnsupportedArchitecture

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_HEADS = ("num_attention_heads", "num_key_value_heads")

# Their outputs are keys, alone or beside others.
_KEY_PROJECTIONS = ("k_proj", "qkv_proj", "query_key_value")

COLUMNS = frozenset({"colwise"})
GATHERED = frozenset({"colwise_gather_output", "colwise_rep"})
ROWS = frozenset({"rowwise"})
SPLITTING = frozenset({"rowwise_split_input", "rowwise_rep"})
LOOKUPS = frozenset({"embedding_rowwise"})
SUMMED = frozenset({"moe_tp_experts", "all_reduce"})
# What these do differently concerns gradients.
WHOLE = frozenset({"replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj"})
PACKED_COLUMNS = frozenset({"packed_colwise"})
PACKED_ROWS = frozenset({"packed_rowwise"})
_KNOWN = (
    COLUMNS | GATHERED | ROWS | SPLITTING | LOOKUPS | SUMMED | WHOLE | PACKED_COLUMNS | PACKED_ROWS
)  # fmt: skip


class Share(Protocol):
    """How one parameter is divided."""

    def local(self, whole: Tensor, rank: int, degree: int) -> Tensor:
        """What *rank* of *degree* holds, in memory of its own; the same shape on every rank."""
        ...

    def whole(self, pieces: Sequence[Tensor]) -> Tensor:
        """The parameter of which *pieces* are what the ranks hold, in order."""
        ...


@attrs.frozen
class Cut:
    """An equal part of dimension *dim*, with zeros behind where they do not come out even."""

    dim: int

    size: int
    """Of the whole dimension."""

    packed: int = 1
    """How many matrices lie one behind the other in it; each is divided by itself."""

    def local(self, whole: Tensor, rank: int, degree: int) -> Tensor:
        """As :meth:`Share.local`."""
        parts = [self._part(part, rank, degree) for part in whole.detach().chunk(self.packed, self.dim)]
        return torch.cat(parts, self.dim)

    def whole(self, pieces: Sequence[Tensor]) -> Tensor:
        """As :meth:`Share.whole`."""
        rows = zip(*(piece.chunk(self.packed, self.dim) for piece in pieces), strict=True)
        joined = torch.cat([torch.cat(row, self.dim) for row in rows], self.dim)
        return joined.narrow(self.dim, 0, self.size).contiguous()

    def _part(self, part: Tensor, rank: int, degree: int) -> Tensor:
        size = part.shape[self.dim]
        share = -(-size // degree)
        start = min(rank * share, size)
        piece = part.narrow(self.dim, start, min(share, size - start))
        missing = list(piece.shape)
        missing[self.dim] = share - piece.shape[self.dim]
        return torch.cat([piece, piece.new_zeros(missing)], self.dim)


@attrs.frozen
class OnFirst:
    """All of it on rank 0, zeros elsewhere: a bias that is added before a sum over the ranks."""

    def local(self, whole: Tensor, rank: int, degree: int) -> Tensor:
        """As :meth:`Share.local`."""
        return whole.detach().clone() if rank == 0 else torch.zeros_like(whole)

    def whole(self, pieces: Sequence[Tensor]) -> Tensor:
        """As :meth:`Share.whole`."""
        return pieces[0]


@attrs.frozen
class ParallelPlan:
    """What is divided, and how."""

    architecture: str

    modules: dict[str, str]
    """Name of a module to its style."""

    shares: dict[str, Share]
    """Name of a parameter to how it is divided; those that every rank holds whole are not there."""

    @classmethod
    def of(cls, model: "PreTrainedModel", tp_degree: int) -> "ParallelPlan":
        """
        The plan of a whole *model* for *tp_degree* ranks.

        Raises:
            UnsupportedArchitecture: It has no plan, one that leaves its layers whole, or one with a
                style that is not known here.

            ValueError: Heads or layers cannot be divided so.
        """
        name = type(model).__name__
        styles = _styles(name, model)
        modules = {path: style for path, _ in model.named_modules() if (style := _lookup(path, styles))}
        shares: dict[str, Share] = {}
        counts = dict(_head_counts(model, modules))
        for path, parameter in model.named_parameters(remove_duplicate=False):
            style = _lookup(path, styles) or modules.get(path.rpartition(".")[0], "")
            share = _share(style, path, parameter)
            if share is not None:
                shares[path] = share
            # Only what is put together again right away may be padded.
            if isinstance(share, Cut) and style not in GATHERED | LOOKUPS:
                side = "inputs" if share.dim > max(parameter.ndim - 2, 0) else "outputs"
                counts.setdefault(f"the {side} of {path}", share.size // share.packed)
        if not any(part.isdigit() for path in shares for part in path.split(".")):
            raise UnsupportedArchitecture(
                name, "its tensor-parallel plan divides none of its layers; tp_degree=1 serves it whole"
            )
        _check_counts(name, counts, tp_degree)
        return cls(architecture=name, modules=modules, shares=shares)


def _styles(architecture: str, model: "PreTrainedModel") -> dict[str, str]:
    styles = dict(getattr(model, "tp_plan", None) or {})
    if not styles:
        raise UnsupportedArchitecture(
            architecture, "transformers has no tensor-parallel plan for it; tp_degree=1 serves it whole"
        )
    unknown = {style for style in styles.values() if style not in _KNOWN}
    if unknown:
        raise UnsupportedArchitecture(
            architecture, f"its tensor-parallel plan has the style {min(unknown)!r}, which is not known here"
        )
    return styles


def _lookup(path: str, styles: dict[str, str]) -> str | None:
    """Plans say ``layers.*`` for each of the layers."""
    return styles.get(".".join("*" if part.isdigit() else part for part in path.split(".")))


def _share(style: str, path: str, parameter: nn.Parameter) -> Share | None:
    # [..., outputs, inputs], or [outputs] of a bias.
    outputs, inputs = max(parameter.ndim - 2, 0), parameter.ndim - 1
    if style in COLUMNS | GATHERED | LOOKUPS:
        return Cut(outputs, parameter.shape[outputs])
    if style in PACKED_COLUMNS:
        return Cut(outputs, parameter.shape[outputs], packed=2)
    if style in ROWS | SPLITTING | PACKED_ROWS:
        if path.endswith(".bias"):
            return OnFirst()
        return Cut(inputs, parameter.shape[inputs], packed=2 if style in PACKED_ROWS else 1)
    return None


def _head_counts(model: "PreTrainedModel", modules: dict[str, str]) -> Iterator[tuple[str, int]]:
    """The heads that a plan divides."""
    divided = {path.rpartition(".")[2] for path, style in modules.items() if style in COLUMNS}
    if not divided & set(_KEY_PROJECTIONS):
        return
    config = model.config.get_text_config(decoder=True)
    for name in _HEADS:
        value = getattr(config, name, None)
        # Some configs say it layer by layer.
        for count in value if isinstance(value, list | tuple) else [value]:
            if isinstance(count, int):
                yield name, count


def _check_counts(architecture: str, counts: Mapping[str, int], tp_degree: int) -> None:
    for what, count in counts.items():
        if count % tp_degree:
            whole = math.gcd(*counts.values())
            possible = " or ".join(str(n) for n in range(1, whole + 1) if whole % n == 0)
            raise ValueError(
                f"'tp_degree' must divide {what} = {count} of {architecture}: got {tp_degree}; "
                f"{possible} would do"
            )
