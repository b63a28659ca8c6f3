"""
Sharding of a model's weights over ranks, by the model's own tensor-parallel plan.

transformers has a plan for most architectures: a style for each linear layer. *colwise* shards the
outputs, so that each attention head is whole on one rank; *rowwise* shards the inputs, and the partial
products are all-reduced. Shoeybi et al., 2019, `Megatron-LM: Training Multi-Billion Parameter Language
Models Using Model Parallelism <https://arxiv.org/abs/1909.08053>`_, section 3.
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

# Layers that compute keys, alone or fused with queries and values.
_KEY_PROJECTIONS = ("k_proj", "qkv_proj", "query_key_value")

COLUMNS = frozenset({"colwise"})
GATHERED = frozenset({"colwise_gather_output", "colwise_rep"})
ROWS = frozenset({"rowwise"})
SPLITTING = frozenset({"rowwise_split_input", "rowwise_rep"})
LOOKUPS = frozenset({"embedding_rowwise"})
SUMMED = frozenset({"moe_tp_experts", "all_reduce"})
# They differ in gradients only.
WHOLE = frozenset({"replicate", "replicated_with_grad_allreduce", "mla_kv_a_proj"})
PACKED_COLUMNS = frozenset({"packed_colwise"})
PACKED_ROWS = frozenset({"packed_rowwise"})
_KNOWN = (
    COLUMNS | GATHERED | ROWS | SPLITTING | LOOKUPS | SUMMED | WHOLE | PACKED_COLUMNS | PACKED_ROWS
)  # fmt: skip


class Shard(Protocol):
    """How one parameter is sharded."""

    def local(self, whole: Tensor, rank: int, degree: int) -> Tensor:
        """The shard of *rank* among *degree* ranks, a copy; of the same shape on every rank."""
        ...

    def whole(self, pieces: Sequence[Tensor]) -> Tensor:
        """The parameter reassembled from its shards *pieces*, in rank order."""
        ...


@attrs.frozen
class Cut:
    """Equal parts of dimension *dim*, padded with zeros if its size is not a multiple."""

    dim: int

    size: int
    """Size of the whole dimension."""

    packed: int = 1
    """Number of matrices stacked along *dim*; each is sharded separately."""

    def local(self, whole: Tensor, rank: int, degree: int) -> Tensor:
        """As :meth:`Shard.local`."""
        parts = [self._part(part, rank, degree) for part in whole.detach().chunk(self.packed, self.dim)]
        return torch.cat(parts, self.dim)

    def whole(self, pieces: Sequence[Tensor]) -> Tensor:
        """As :meth:`Shard.whole`."""
        rows = zip(*(piece.chunk(self.packed, self.dim) for piece in pieces), strict=True)
        joined = torch.cat([torch.cat(row, self.dim) for row in rows], self.dim)
        return joined.narrow(self.dim, 0, self.size).contiguous()

    def _part(self, part: Tensor, rank: int, degree: int) -> Tensor:
        size = part.shape[self.dim]
        shard = -(-size // degree)
        start = min(rank * shard, size)
        piece = part.narrow(self.dim, start, min(shard, size - start))
        missing = list(piece.shape)
        missing[self.dim] = shard - piece.shape[self.dim]
        return torch.cat([piece, piece.new_zeros(missing)], self.dim)


@attrs.frozen
class OnFirst:
    """The whole parameter on rank 0, zeros elsewhere: a bias that is added before an all-reduce."""

    def local(self, whole: Tensor, rank: int, degree: int) -> Tensor:
        """As :meth:`Shard.local`."""
        return whole.detach().clone() if rank == 0 else torch.zeros_like(whole)

    def whole(self, pieces: Sequence[Tensor]) -> Tensor:
        """As :meth:`Shard.whole`."""
        return pieces[0]


@attrs.frozen
class ParallelPlan:
    """Styles of modules and shards of parameters."""

    architecture: str

    modules: dict[str, str]
    """Name of a module to its style."""

    shards: dict[str, Shard]
    """Name of each sharded parameter to how; replicated parameters are absent."""

    divisor: int
    """What each possible number of ranks divides: heads and sizes of layers; 0 if all numbers do."""

    @classmethod
    def of(cls, model: "PreTrainedModel", tp_degree: int) -> "ParallelPlan":
        """
        The plan of a whole *model* for *tp_degree* ranks.

        Raises:
            UnsupportedArchitecture: It has no plan, one that leaves its layers whole, or one with a
                style that is not known here.

            ValueError: *tp_degree* does not divide heads or layers.
        """
        name = type(model).__name__
        styles = _styles(name, model)
        modules = {path: style for path, _ in model.named_modules() if (style := _lookup(path, styles))}
        shards: dict[str, Shard] = {}
        counts = dict(_head_counts(model, modules))
        for path, parameter in model.named_parameters(remove_duplicate=False):
            style = _lookup(path, styles) or modules.get(path.rpartition(".")[0], "")
            shard = _shard(style, path, parameter)
            if shard is not None:
                shards[path] = shard
            # Padding is allowed only where the outputs are combined immediately.
            if isinstance(shard, Cut) and style not in GATHERED | LOOKUPS:
                side = "inputs" if shard.dim > max(parameter.ndim - 2, 0) else "outputs"
                counts.setdefault(f"the {side} of {path}", shard.size // shard.packed)
        if not any(part.isdigit() for path in shards for part in path.split(".")):
            raise UnsupportedArchitecture(
                name, "its tensor-parallel plan divides none of its layers; tp_degree=1 serves it whole"
            )
        _check_counts(name, counts, tp_degree)
        return cls(architecture=name, modules=modules, shards=shards, divisor=math.gcd(*counts.values()))


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
    """The style of *path*; plans write ``layers.*`` for every layer."""
    return styles.get(".".join("*" if part.isdigit() else part for part in path.split(".")))


def _shard(style: str, path: str, parameter: nn.Parameter) -> Shard | None:
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
    """Names and sizes of the head counts that a plan shards."""
    sharded = {path.rpartition(".")[2] for path, style in modules.items() if style in COLUMNS}
    if not sharded & set(_KEY_PROJECTIONS):
        return
    config = model.config.get_text_config(decoder=True)
    for name in _HEADS:
        value = getattr(config, name, None)
        # Some configs have one number per layer.
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
