"""Rules of neuronx-cc, checked on HLO."""

import pytest

from decodekit.neuron_backend.lint.hlo_lint import lint_hlo
from decodekit.neuron_backend.lint.hlo_rules import RULES
from decodekit.neuron_backend.lint.hlo_text import parse_hlo

ADD = """
%add.1 (x.2: s32[], y.3: s32[]) -> s32[] {
  %x.2 = s32[] parameter(0)
  %y.3 = s32[] parameter(1)
  ROOT %add.4 = s32[] add(s32[] %x.2, s32[] %y.3)
}
"""
LAST = """
%last.1 (x.2: s32[], y.3: s32[]) -> s32[] {
  %x.2 = s32[] parameter(0)
  ROOT %y.3 = s32[] parameter(1)
}
"""


def module(line: str, before: str = "") -> str:
    """A module of one instruction besides its input."""
    return f"""HloModule graph, entry_computation_layout={{(f32[2,3]{{1,0}})->f32[2,3]{{1,0}}}}
{before}
ENTRY %graph.9 (p.1: f32[2,3]) -> f32[2,3] {{
  %p.1 = f32[2,3]{{1,0}} parameter(0)
  {line}
}}
"""


SCATTER = (
    "%s.2 = s32[9]{0} scatter(s32[9]{0} %a.1, s32[2,1]{1,0} %i.1, s32[2]{0} %u.1), update_window_dims={}, "
    "to_apply=%"
)

WINDOW = "%a.2 = f32[2,3]{1,0} reduce-window(f32[2,3]{1,0} %p.1, f32[] %c.1), "

# Indices 0, 1, ... as a column, and reads and writes of rows, or of single numbers, by them.
IOTA = (
    "%i.1 = s32[{0}]{{0}} iota(), iota_dimension=0\n  "
    "%i.2 = s32[{0},1]{{1,0}} reshape(s32[{0}]{{0}} %i.1)\n  "
)
COLUMNS = "%b.1 = s32[4,2]{1,0} concatenate(s32[4,1]{1,0} %r.1, s32[4,1]{1,0} %i.2), dimensions={1}\n  "
WRITE = (
    "%s.1 = f32[2,3]{1,0} scatter(f32[2,3]{1,0} %p.1, s32[10,1]{1,0} %i.2, f32[10,3]{1,0} %u.1), "
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
    "to_apply=%last.1"
)
WRITE_BOTH = (
    "%s.1 = f32[2,3]{1,0} scatter(f32[2,3]{1,0} %p.1, s32[4,2]{1,0} %b.1, f32[4]{0} %u.1), "
    "update_window_dims={}, inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1}, "
    "index_vector_dim=1, to_apply=%last.1"
)
READ = (
    "%g.1 = f32[10,3]{1,0} gather(f32[2,3]{1,0} %p.1, s32[10,1]{1,0} %i.2), offset_dims={1}, "
    "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}"
)

# Lines as XLA prints them, which break one rule each.
CONTROLS = [
    ("open-shape", "%a.2 = f32[<=5,3]{1,0} slice(f32[9,3]{1,0} %p.1), slice={[0:5], [0:3]}"),
    (
        "open-shape",
        '%a.2 = f32[?,3]{1,0} custom-call(f32[2,3]{1,0} %p.1), custom_call_target="AwsNeuronTopK"',
    ),
    ("open-shape", "%a.2 = s32[] get-dimension-size(f32[9,3]{1,0} %p.1), dimensions={0}"),
    ("sort", "%a.2 = f32[2,3]{1,0} sort(f32[2,3]{1,0} %p.1), dimensions={1}, to_apply=%compare.1"),
    (
        "sort",
        "%a.2 = (f32[2,3]{1,0}, s32[2,3]{1,0}) sort(f32[2,3]{1,0} %p.1, s32[2,3]{1,0} %i.1), dimensions={1}",
    ),
    ("sort", "%a.2 = (f32[2,2]{1,0}, s32[2,2]{1,0}) topk(f32[2,3]{1,0} %p.1), k=2, largest=true"),
    (
        "variadic-reduce",
        "%a.2 = (f32[2]{0}, s32[2]{0}) reduce(f32[2,3]{1,0} %p.1, s32[2,3]{1,0} %i.1, f32[] %c.1, "
        "s32[] %c.2), dimensions={1}, to_apply=%minmax.1",
    ),
    ("window-base-dilation", WINDOW + "window={size=1x2 lhs_dilate=1x2}, to_apply=%add.1"),
    ("window-dilation", WINDOW + "window={size=1x2 pad=0_0x1_0 rhs_dilate=1x2}, to_apply=%add.1"),
    ("window-dilation", WINDOW + "window={size=1x2 rhs_dilate=10x1}, to_apply=%add.1"),
    (
        "window-operands",
        "%a.2 = (f32[2,3]{1,0}, f32[2,3]{1,0}) reduce-window(f32[2,3]{1,0} %p.1, f32[2,3]{1,0} %p.1, "
        "f32[] %c.1, f32[] %c.2), window={size=1x2}, to_apply=%minmax.1",
    ),
    ("select-and-scatter", "%a.2 = f32[2,3]{1,0} select-and-scatter(f32[2,3]{1,0} %p.1, f32[2,2]{1,0} %s.1)"),
    ("scatter-bounds", IOTA.format(10) + WRITE),
    ("scatter-bounds", IOTA.format(4) + COLUMNS + WRITE_BOTH),
    ("gather-bounds", IOTA.format(10) + READ),
    # As torch_xla writes one index.
    (
        "gather-bounds",
        IOTA.format(10).replace("%i.2", "%i.3")
        + "%i.2 = s32[10,1]{1,0} concatenate(s32[10,1]{1,0} %i.3), dimensions={1}\n  "
        + READ,
    ),
    ("random", "%a.2 = (u64[2]{0}, u32[3]{0}) rng-bit-generator(u64[2]{0} %s.1), algorithm=rng_philox"),
    ("random", "%a.2 = f32[2,3]{1,0} rng(f32[] %c.1, f32[] %c.2), distribution=rng_uniform"),
    ("float64", "%a.2 = f64[] parameter(1)"),
    ("float64", "%a.2 = f64[2,3]{1,0} convert(f32[2,3]{1,0} %p.1)"),
    ("complex", "%a.2 = c64[2,3]{1,0} complex(f32[2,3]{1,0} %p.1, f32[2,3]{1,0} %p.1)"),
    (
        "integer-dot",
        "%a.2 = s32[2,2]{1,0} dot(s32[2,3]{1,0} %i.1, s32[3,2]{1,0} %i.2), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={0}",
    ),
    ("integer-scatter", SCATTER + "add.1"),
    ("integer-all-reduce", "%a.2 = s32[3]{0} all-reduce(s32[3]{0} %i.1), replica_groups={}, to_apply=%add.1"),
    ("integer-all-reduce", "%a.2 = s64[3]{0} all-reduce-start(s64[3]{0} %i.1), to_apply=%add.1"),
    ("integer-reduce-scatter", "%a.2 = s32[3]{0} reduce-scatter(s32[6]{0} %i.1), dimensions={0}"),
    ("int64-power", "%a.2 = s64[3]{0} power(s64[3]{0} %i.1, s64[3]{0} %i.2)"),
    ("shift", "%a.2 = s64[3]{0} shift-right-arithmetic(s64[3]{0} %i.1, s64[3]{0} %i.2)"),
    ("control-flow", "%a.2 = (s32[], f32[3]{0}) while((s32[], f32[3]{0}) %t.1), condition=%c.1, body=%b.1"),
    ("control-flow", "%a.2 = f32[3]{0} conditional(pred[] %i.1, f32[3]{0} %p.1, f32[3]{0} %p.1)"),
    ("solver", "%a.2 = f32[3,3]{1,0} cholesky(f32[3,3]{1,0} %p.1), lower=true"),
    ("solver", "%a.2 = f32[3,3]{1,0} triangular-solve(f32[3,3]{1,0} %p.1, f32[3,3]{1,0} %p.1), lower=true"),
    ("custom-call", '%a.2 = f32[3]{0} custom-call(f32[3]{0} %p.1), custom_call_target="Qr"'),
    ("custom-call", "%a.2 = f32[3]{0} custom-call(f32[3]{0} %p.1)"),
    ("host-transfer", "%a.2 = token[] outfeed(f32[2,3]{1,0} %p.1, token[] %t.1)"),
    ("host-transfer", "ROOT %a.2 = ((f32[3]{0}), token[]) infeed(token[] %t.1)"),
]

# Similar instructions that are supported.
INNOCENT = [
    WINDOW + "window={size=1x3 pad=0_0x2_0}, to_apply=%add.1",
    WINDOW + "window={size=1x3 lhs_dilate=1x1 rhs_dilate=1x1}, to_apply=%add.1",
    IOTA.format(2) + WRITE,
    IOTA.format(2) + READ,
    IOTA.format(3) + COLUMNS + WRITE_BOTH,
    # An index of the data's own.
    "%i.2 = s32[10,1]{1,0} parameter(1)\n  " + READ,
    "%a.2 = f32[] reduce(f32[2,3]{1,0} %p.1, f32[] %c.1), dimensions={0,1}, to_apply=%add.1",
    "%a.2 = f32[2,2]{1,0} dot(f32[2,3]{1,0} %p.1, f32[3,2]{1,0} %p.2), lhs_contracting_dims={1}",
    SCATTER + "last.1",
    "%a.2 = f32[9]{0} scatter(f32[9]{0} %a.1, s32[2,1]{1,0} %i.1, f32[2]{0} %u.1), to_apply=%add.1",
    "%a.2 = f32[3]{0} all-reduce(f32[3]{0} %p.1), replica_groups={}, to_apply=%add.1",
    "%a.2 = f32[3]{0} power(f32[3]{0} %p.1, f32[3]{0} %p.1)",
    "%a.2 = s32[3]{0} shift-right-arithmetic(s32[3]{0} %i.1, s32[3]{0} %i.2)",
    '%a.2 = f32[3]{0} custom-call(f32[3]{0} %p.1), custom_call_target="AwsNeuronTopK"',
    "%sort.2 = f32[2,3]{1,0} add(f32[2,3]{1,0} %p.1, f32[2,3]{1,0} %while.1)",
    # Reported where it was introduced.
    "%a.2 = f64[2,3]{1,0} add(f64[2,3]{1,0} %d.1, f64[2,3]{1,0} %d.1)",
    "%a.2 = f32[2,3]{1,0} convert(f64[2,3]{1,0} %d.1)",
]


class TestRules:
    @pytest.mark.parametrize(("rule", "line"), CONTROLS)
    def test_are_broken(self, rule, line):
        """Each line breaks exactly one rule."""
        assert [rule] == [finding.rule for finding in lint_hlo(module(line, ADD))]

    @pytest.mark.parametrize("line", INNOCENT)
    def test_let_the_rest_pass(self, line):
        """Similar instructions break none."""
        assert [] == lint_hlo(module(line, LAST if "last" in line else ADD))

    def test_have_a_control_each(self):
        """Every rule is tested, and rule ids are unique."""
        assert sorted(rule.id for rule in RULES) == sorted({rule for rule, _ in CONTROLS})

    def test_say_who_says_so(self):
        """A source each, and a code as the compiler writes them."""
        assert all(rule.source and rule.reason for rule in RULES)
        assert all(rule.code is None or rule.code.startswith("NCC_") for rule in RULES)


class TestFindings:
    def test_name_the_instruction(self):
        """The instruction, the code, the reason and the source."""
        (finding,) = lint_hlo(module("%sort.7 = f32[2,3]{1,0} sort(f32[2,3]{1,0} %p.1), dimensions={1}"))

        assert "sort.7" == finding.node
        assert str(finding).startswith("sort.7: sort f32[2,3]{1,0}: NCC_EVRF029, no sort;")

    def test_are_found_in_every_computation(self):
        """All computations are linted."""
        inner = ADD.replace("add(s32[] %x.2, s32[] %y.3)", "power(s64[] %x.2, s64[] %y.3)").replace(
            "%add.4 = s32", "%add.4 = s64"
        )

        assert ["int64-power"] == [
            finding.rule for finding in lint_hlo(module("%a.2 = f32[] constant(0)", inner))
        ]

    def test_are_not_looked_for_in_something_else(self):
        """A text that is not HLO is an error rather than without findings."""
        with pytest.raises(ValueError, match="must be an HLO module: got 'module @jit"):
            lint_hlo("module @jit { func.func public @main() }")

    def test_need_the_shapes_of_operands(self):
        """XLA prints HLO without them too."""
        with pytest.raises(ValueError, match=r"shape of every operand .*: got negate\(%p.1\)"):
            lint_hlo(module("%n.1 = f32[2,3]{1,0} negate(%p.1)"))


def test_parsing_keeps_operands_and_attributes_apart():
    """Operands may have parentheses of their own."""
    line = "ROOT %t.2 = (f32[2]{0}, s32[]) tuple((f32[2]{0}) %a.1, s32[] %b.1), sharding={replicated}"

    (_, instruction) = parse_hlo(module(line))["graph.9"]

    assert ("t.2", "(f32[2]{0}, s32[])", "tuple", True) == (
        instruction.name,
        instruction.shape,
        instruction.op,
        instruction.is_root,
    )
    assert "(f32[2]{0}) %a.1, s32[] %b.1" == instruction.operands
    assert ", sharding={replicated}" == instruction.attributes
