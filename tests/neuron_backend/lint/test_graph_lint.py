"""Rules of neuronx-cc, checked on exported graphs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decodekit.neuron_backend.lint.graph_lint import lint_graph, lint_module
from decodekit.neuron_backend.lint.graph_rules import RULES
from decodekit.neuron_backend.lowering.export import lower


def attention(states: Tensor, dropout_p: float) -> Tensor:
    """Of each row to the others, as torch exports it."""
    return nn.functional.scaled_dot_product_attention(*[states[None]] * 3, dropout_p=dropout_p)


X = torch.tensor([[0.5, 2.0, 1.0], [0.25, 0.125, 4.0]])
I = torch.tensor([[0, 1, 1], [1, 0, 1]])  # noqa: E741 (integers, beside X)


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def found(function: Callable[..., Any], *inputs: Tensor) -> list[str]:
    """The rules that a function breaks once it is lowered."""
    return [finding.rule for finding in lint_module(Calls(function), inputs)]


def exported(function: Callable[..., Any], *inputs: Tensor) -> list[str]:
    """The rules that it breaks without constant folding."""
    return [
        finding.rule for finding in lint_graph(torch.export.export(Calls(function), inputs, strict=False))
    ]


def with_an_open_batch() -> list[str]:
    """Exported for any number of rows."""
    rows = torch.export.Dim("rows")
    program = torch.export.export(Calls(lambda x: x * 2), (X,), dynamic_shapes=(({0: rows},),))
    return [finding.rule for finding in lint_graph(program)]


def breaks(rule: str, name: str, function: Callable[..., Any], *inputs: Tensor) -> Any:
    """A function that is to break one rule, once it is lowered."""
    return pytest.param(rule, lambda: found(function, *inputs), id=name)


CONTROLS = [
    breaks("sort", "sort", lambda x: x.sort()[0], X),
    breaks("sort", "stable-sort", lambda x: x.sort(stable=True)[0], X),
    breaks("sort", "argsort", lambda x: x.argsort(), X),
    breaks("sort", "median", lambda x: x.median(), X),
    breaks("sort", "kthvalue", lambda x: x.kthvalue(2)[0], X),
    breaks("top-k-form", "top-k-of-columns", lambda x: x.topk(2, dim=0)[0], X),
    breaks("top-k-form", "smallest-k", lambda x: x.topk(2, largest=False)[0], X),
    breaks("top-k-width", "wide-top-k", lambda x: x.topk(2)[0], torch.ones(1, 16_385)),
    breaks("top-k-of-integers", "integer-top-k", lambda x: x.topk(2)[0], I),
    breaks("argmax", "argmax", lambda x: x.argmax(dim=-1), X),
    breaks("argmax", "argmin", lambda x: x.argmin(dim=-1), X),
    breaks("argmax", "max-with-index", lambda x: x.max(dim=-1)[1], X),
    breaks("argmax", "min-with-index", lambda x: x.min(dim=-1)[1], X),
    breaks("argmax", "cummax", lambda x: x.cummax(dim=-1)[0], X),
    breaks("cumprod", "cumprod", lambda x: x.cumprod(dim=-1), X),
    breaks("random", "multinomial", lambda x: x.multinomial(1), X),
    breaks("random", "rand-like", lambda x: torch.rand_like(x), X),
    breaks("random", "rand-without-inputs", lambda x: x + torch.rand(3), X),
    breaks("random", "randn", lambda x: x + torch.randn(3), X),
    breaks("random", "randint", lambda x: x + torch.randint(9, (3,)), X),
    breaks("random", "randperm", lambda x: x + torch.randperm(3), X),
    breaks("random", "exponential", lambda x: torch.empty_like(x).exponential_(), X),
    breaks("random", "bernoulli", lambda x: x.sigmoid().bernoulli(), X),
    breaks("random", "dropout", nn.functional.dropout, X),
    pytest.param(
        "random", lambda: exported(partial(attention, dropout_p=0.5), X), id="attention-with-dropout"
    ),
    breaks("float64", "cast-to-float64", lambda x: x.double().exp() * 2, X),
    breaks("float64", "float64-input", lambda x: x.exp() * 2, X.double()),
    breaks("float64", "float64-constant", lambda x: x + torch.tensor([0.1]).double(), X),
    breaks("complex", "fft", lambda x: torch.fft.fft(x).abs(), X),
    pytest.param("float-comparison", lambda: exported(lambda x: x > 0.5, X), id="greater-than-a-float"),
    pytest.param("float-comparison", lambda: exported(lambda x: x == torch.inf, X), id="equal-to-infinity"),
    breaks("integer-division", "floor-division", lambda i: i // 3, I),
    breaks("integer-division", "remainder", lambda i: i % 3, I),
    breaks("integer-division", "fmod", lambda i: i.fmod(3), I),
    pytest.param("integer-division", lambda: exported(lambda i: i.floor_divide(i), I), id="not-decomposed"),
    pytest.param("arange", lambda: exported(lambda x: x + torch.arange(3), X), id="arange-not-folded"),
    breaks("variance", "var", lambda x: x.var(dim=-1), X),
    breaks("variance", "std", lambda x: x.std(dim=-1), X),
    breaks("index-put", "index-put", lambda x, i: x.index_put((i[:, 0],), x), X, I),
    breaks("index-put", "transposed-index-put", lambda x, i: x.T.index_put((i[0, :1],), x[:1, :2]), X, I),
    breaks("index-put", "accumulating", lambda x, i: x.index_put((i[:, 0],), x, accumulate=True), X, I),
    breaks(
        "scatter-bounds", "scatter", lambda x: x.scatter(1, torch.arange(4)[None] // 1, x.new_ones(1, 4)), X
    ),
    breaks("scatter-bounds", "index-copy", lambda x: x.index_copy(0, torch.tensor([2]), x[:1]), X),
    breaks("gather-bounds", "gather", lambda x: x.gather(1, torch.tensor([0, 3]).expand(2, 2)), X),
    breaks("gather-bounds", "index-select", lambda x: x.index_select(0, torch.arange(3)), X),
    breaks("gather-bounds", "index", lambda x: x[:, torch.arange(4)], X),
    breaks("gather-bounds", "embedding", lambda x: nn.functional.embedding(torch.arange(3), x), X),
    breaks("unfold", "unfold", lambda x: x.unfold(-1, 2, 1), X),
    breaks("integer-dot", "integer-matmul", lambda i: i @ i.T, I),
    breaks("integer-dot", "integer-einsum", lambda i: torch.einsum("ab,cb->ac", i, i), I),
    breaks("integer-scatter", "scatter-add", lambda i: i.scatter_add(-1, i, i), I),
    breaks("integer-scatter", "scatter-with-add", lambda i: i.scatter(-1, i, i, reduce="add"), I),
    breaks("integer-scatter", "scatter-reduce", lambda i: i.scatter_reduce(-1, i, i, "amax"), I),
    breaks("integer-scatter", "index-add", lambda i: i.index_add(1, i[0], i), I),
    breaks(
        "integer-scatter", "accumulating-index-put", lambda i: i.index_put((i[:, 0],), i, accumulate=True), I
    ),
    breaks("int64-power", "int64-square", lambda i: i**2, I),
    breaks("shift", "right-shift-of-bytes", lambda i: i.to(torch.uint8) >> 4, I),
    breaks("shift", "bitwise-right-shift", lambda i: torch.bitwise_right_shift(i, 2), I),
    breaks("shape-from-data", "nonzero", lambda x: x.nonzero(), X),
    breaks("shape-from-data", "masked-select", lambda x: x.masked_select(x > 0), X),
    breaks("shape-from-data", "unique", lambda x: x.unique(), X),
    breaks("shape-from-data", "item", lambda x: x * x.sum().item(), X),
    breaks("shape-from-data", "read-by-mask", lambda x: x[x > 0], X),
    breaks("shape-from-data", "write-by-mask", lambda x: x.index_put((x > 0,), torch.tensor(0.0)), X),
    pytest.param("open-shape", with_an_open_batch, id="open-batch"),
    breaks(
        "control-flow", "cond", lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)), X
    ),
    breaks("device-move", "to-another-device", lambda x: x.to("meta"), X),
    breaks(
        "triangular-solve",
        "triangular-solve",
        lambda x: torch.linalg.solve_triangular(x[:, :2], x, upper=True),
        X,
    ),
    breaks("copysign", "copysign", lambda x: x.copysign(-x), X),
]
"""Two lines that break a rule, and that rule alone."""


class TestRules:
    @pytest.mark.mostly_slow(every=6)
    @pytest.mark.parametrize(("rule", "findings"), CONTROLS)
    def test_finds_what_breaks_it_and_nothing_else(
        self, rule: str, findings: Callable[[], list[str]]
    ) -> None:
        """One finding in one operation."""
        assert [rule] == findings()

    def test_an_attention_without_dropout_draws_nothing(self) -> None:
        """Though torch calls it random, and a graph is taken as torch.export gives it."""
        assert [] == exported(partial(attention, dropout_p=0.0), X)

    def test_each_has_a_control(self) -> None:
        """Every rule is tested by a function that breaks it."""
        assert {rule.id for rule in RULES} == {control.values[0] for control in CONTROLS}

    def test_each_says_why_and_who_says_so(self) -> None:
        """Rule ids are unique."""
        assert len(RULES) == len({rule.id for rule in RULES})
        assert all(rule.reason and rule.source for rule in RULES)

    @pytest.mark.mostly_slow(every=4)
    @pytest.mark.parametrize(
        "function",
        [
            pytest.param(lambda x, i: x.topk(2)[0], id="top-k"),
            pytest.param(lambda x, i: x[None].topk(2, sorted=False)[0], id="top-k-in-another-form"),
            pytest.param(lambda x, i: x.amax(dim=-1) + x.max() - x.min(), id="extremes-without-their-index"),
            pytest.param(lambda x, i: x.maximum(x[:1]), id="elementwise-maximum"),
            pytest.param(lambda x, i: x.softmax(dim=-1), id="softmax"),
            pytest.param(lambda x, i: x @ x.T, id="matmul"),
            pytest.param(lambda x, i: x**2, id="float-power"),
            pytest.param(lambda x, i: i.int() >> 4, id="shift-of-32-bits"),
            pytest.param(lambda x, i: x / 3, id="float-division"),
            pytest.param(lambda x, i: x > 0, id="comparison-with-an-integer"),
            pytest.param(lambda x, i: i < 3, id="integers-compared"),
            pytest.param(lambda x, i: x.masked_fill(i > 0, -torch.inf), id="mask"),
            pytest.param(lambda x, i: x.scatter_add(-1, i, x), id="float-scatter-add"),
            pytest.param(lambda x, i: i.scatter(-1, i, i), id="integer-scatter-without-arithmetic"),
            pytest.param(lambda x, i: x.gather(-1, i), id="gather"),
            pytest.param(lambda x, i: x[:, i[0]], id="read-by-number"),
            pytest.param(lambda x, i: x.to("cpu", torch.bfloat16), id="to-the-same-device"),
            pytest.param(lambda x, i: x + torch.arange(3) // 2, id="constants-folded"),
            pytest.param(lambda x, i: x > 0.5, id="comparison-with-a-float-that-became-a-tensor"),
            pytest.param(lambda x, i: x.logsumexp(dim=-1), id="logsumexp"),
            pytest.param(lambda x, i: x.cumsum(dim=-1), id="cumsum"),
            pytest.param(lambda x, i: x.logcumsumexp(dim=-1), id="logcumsumexp"),
            pytest.param(lambda x, i: x.index_copy(0, i[0, :1], x[:1]), id="index-copy"),
            pytest.param(lambda x, i: x.scatter(1, torch.arange(3)[None], x[:1]), id="scatter-within-bounds"),
            pytest.param(lambda x, i: x.index_copy(0, torch.tensor([1]), x[:1]), id="last-row-written"),
            pytest.param(lambda x, i: x.gather(1, torch.tensor([[2]])), id="last-column-read"),
            pytest.param(lambda x, i: x[torch.arange(2)], id="every-row-read"),
        ],
    )
    def test_let_pass_what_is_taken(self, function: Callable[..., Tensor]) -> None:
        """Similar operations that are supported."""
        assert [] == found(function, X, I)


class TestLint:
    def test_takes_the_widest_top_k(self) -> None:
        """The bound itself is allowed."""
        assert [] == found(lambda x: x.topk(2)[0], torch.ones(1, 16_384))

    def test_looks_into_branches(self) -> None:
        """Branches are linted as well."""
        assert ["control-flow", "sort"] == found(
            lambda x: torch.cond(x.sum() > 0, lambda x: x.sort()[0], lambda x: x + 1, (x,)), X
        )

    def test_says_where_and_why(self) -> None:
        """A finding reads as a sentence."""
        (finding,) = lint_module(Calls(lambda i: i @ i.T), (I,))

        assert (
            "mm: mm: NCC_EVRF035, no product of integer matrices; cast them to float32, exact below 2^24 "
            "[integer-dot; AWS Neuron SDK 2.32, compiler error codes, EVRF035]"
        ) == str(finding)


class Offsets(nn.Module):
    """Adds a parameter and two constants."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + torch.arange(3) * 2 + torch.full((3,), 0.5)


class TestLower:
    def test_computes_the_same(self) -> None:
        """Folding does not change the result."""
        assert torch.equal(Offsets()(X), lower(Offsets(), (X,))(X))

    def test_folds_what_depends_on_no_input(self) -> None:
        """The last of a chain of constants becomes a buffer, a fill a number; parameters are kept."""
        lowered = lower(Offsets(), (X,))

        assert [[0, 2, 4], 0.5] == [buffer.tolist() for buffer in lowered.buffers()]
        assert ["scale"] == [name for name, _ in lowered.named_parameters()]
        names = [str(node.target) for node in lowered.graph.nodes if node.op == "call_function"]
        assert ["aten.mul.Tensor", "aten.add.Tensor", "aten.expand.default", "aten.add.Tensor"] == names

    def test_can_be_moved(self) -> None:
        """No constant stays behind on the host."""
        lowered = lower(Offsets(), (X,)).to("meta")

        assert "meta" == lowered(X.to("meta")).device.type

    def test_shares_the_parameters(self) -> None:
        """Weights are not copied."""
        module = Offsets()

        (parameter,) = lower(module, (X,)).parameters()

        assert module.scale.data_ptr() == parameter.data_ptr()

    def test_folds_tensors_that_are_no_parameters(self) -> None:
        """A float64 setting that a function rounds to float32 never enters the graph."""
        setting = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)

        lowered = lower(Calls(lambda x: x * setting.float()), (X,))

        assert [torch.float32] == [value.dtype for value in lowered.buffers()]
        assert [] == lint_graph(lowered)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            # float32's nearest to 0.1 lies above it, and is not above itself.
            pytest.param(torch.tensor([0.1, 0.2]), [False, True], id="float32"),
            pytest.param(torch.tensor([0, 1]), [False, True], id="integers"),
        ],
    )
    def test_compares_in_the_dtype_in_which_torch_does(self, values: Tensor, expected: list[bool]) -> None:
        """A Python float is read as one of the other side's dtype, or, beside integers, as float32."""
        lowered = lower(Calls(lambda x: x > 0.1), (values,))

        assert expected == (values > 0.1).tolist() == lowered(values).tolist()
        assert [] == lint_graph(lowered)

    def test_does_not_freeze_random_numbers(self) -> None:
        """Folded, they would be the same at every call, and no rule would report them."""
        assert ["random"] == found(lambda x: x + torch.rand(3) * 2, X)
