"""Properties of every processor."""

import pickle
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from decodekit.decoding.history import History
from decodekit.decoding.protocols import Processor
from decodekit.neuron_backend import lint_graph, lower
from decodekit.neuron_backend.lowering import export as lowering

from ..strategies import examples, windows
from .by_hand import NOTHING
from .entries import constraints, penalties, scaling, truncation, watermarks
from .entries.entry import NONE, Entry

# No deadline: the machine may be busy.
prop = settings(deadline=None, max_examples=examples(40))

Window = tuple[Tensor, History]


CATALOGUE = (
    constraints.ENTRIES | penalties.ENTRIES | scaling.ENTRIES | truncation.ENTRIES | watermarks.ENTRIES
)
TRACED = {name: entry for name, entry in CATALOGUE.items() if not entry.host_only}

every = pytest.mark.parametrize("entry", CATALOGUE.values(), ids=CATALOGUE.keys())
with_neutral = pytest.mark.parametrize(
    "entry",
    [entry for entry in CATALOGUE.values() if entry.neutral is not NONE],
    ids=[name for name, entry in CATALOGUE.items() if entry.neutral is not NONE],
)
with_rows = pytest.mark.parametrize(
    "entry",
    [entry for entry in CATALOGUE.values() if entry.rows],
    ids=[name for name, entry in CATALOGUE.items() if entry.rows],
)
with_neutral_rows = pytest.mark.parametrize(
    "entry",
    [entry for entry in CATALOGUE.values() if entry.rows and entry.neutral is not NONE],
    ids=[name for name, entry in CATALOGUE.items() if entry.rows and entry.neutral is not NONE],
)

scalar_and_per_row = pytest.mark.parametrize(
    ("entry", "per_row"),
    [(entry, per_row) for entry in TRACED.values() for per_row in (False, True)[: 1 + entry.rows]],
    ids=[name + suffix for name, entry in TRACED.items() for suffix in ("", " per row")[: 1 + entry.rows]],
)


def declaring(name: str) -> pytest.MarkDecorator:
    """The entries that declare *name*."""
    declaring_entries = {
        key: entry for key, entry in CATALOGUE.items() if getattr(entry.make(entry.example), name, False)
    }
    return pytest.mark.parametrize("entry", declaring_entries.values(), ids=declaring_entries.keys())


def prefix(history: History, row: int, column: int) -> Tensor:
    """The ids that precede a column, ``[length]``."""
    path = column if history.ids.shape[1] > 1 else 0
    return history.ids[row, path, : int(history.length[row, column])]


def column_of(history: History, column: int, garbage: int) -> History:
    """One column with its own path, and *garbage* beyond its length."""
    path = column if history.ids.shape[1] > 1 else 0
    length = history.length[:, column : column + 1]
    behind = torch.arange(history.ids.shape[-1]) >= length[:, None]
    ids = history.ids[:, path : path + 1].masked_fill(behind, garbage)
    return History(ids, length, history.prompt, history.random_stream)


def a_value_for_each_row(data: st.DataObject, entry: Entry, batch: int) -> list[Any]:
    """One parameter a row, some of them off."""
    one = entry.parameters if entry.neutral is NONE else st.one_of(st.just(entry.neutral), entry.parameters)
    return data.draw(st.lists(one, min_size=batch, max_size=batch))


class TestEveryProcessor:
    @every
    @prop
    @given(window=windows(), data=st.data())
    def test_equals_its_reference_in_every_column(
        self, entry: Entry, window: Window, data: st.DataObject
    ) -> None:
        """Each column equals Hugging Face (or the definition) on that column's prefix."""
        logits, history = window
        value = data.draw(entry.parameters)

        processed = entry.make(value)(logits, history)

        assert logits.dtype == processed.dtype
        for row in range(logits.shape[0]):
            for column in range(logits.shape[1]):
                reference = entry.reference(value, int(history.prompt[row]))
                expected = reference(prefix(history, row, column)[None], logits[row, column][None])
                torch.testing.assert_close(
                    processed[row, column].clamp(min=entry.floor),
                    expected[0].clamp(min=entry.floor),
                    rtol=0.0,
                    atol=entry.atol,
                    equal_nan=False,
                )

    @every
    @prop
    @given(window=windows(), data=st.data())
    def test_treats_a_window_as_its_columns_one_at_a_time(
        self, entry: Entry, window: Window, data: st.DataObject
    ) -> None:
        """A window equals its columns one by one, with other garbage beyond their lengths."""
        logits, history = window
        processor = entry.make(data.draw(entry.parameters))
        garbage = data.draw(st.sampled_from((-1, 0, 2, 10**12)))

        together = processor(logits, history)

        for column in range(logits.shape[1]):
            alone = processor(logits[:, column : column + 1], column_of(history, column, garbage))
            assert torch.equal(alone[:, 0], together[:, column])

    @every
    @prop
    @given(window=windows(), data=st.data())
    def test_does_not_touch_its_input(self, entry: Entry, window: Window, data: st.DataObject) -> None:
        """Logits and history are afterwards what they were before."""
        logits, history = window
        before = [tensor.clone() for tensor in (logits, history.ids, history.length, history.prompt)]

        entry.make(data.draw(entry.parameters))(logits, history)

        after = [logits, history.ids, history.length, history.prompt]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    @with_neutral
    @prop
    @given(window=windows(), data=st.data())
    def test_returns_the_same_object_when_neutral(
        self, entry: Entry, window: Window, data: st.DataObject
    ) -> None:
        """A neutral scalar returns its input."""
        logits, history = window

        assert entry.make(entry.neutral)(logits, history) is logits

    @every
    @prop
    @given(window=windows(), data=st.data())
    def test_leaves_forbidden_tokens_forbidden(
        self, entry: Entry, window: Window, data: st.DataObject
    ) -> None:
        """What is -inf stays -inf, whole rows of it included, and nothing becomes NaN or +inf."""
        logits, history = window

        processed = entry.make(data.draw(entry.parameters))(logits, history)

        assert entry.forces or (processed[logits == -torch.inf] == -torch.inf).all()
        assert (processed < torch.inf).all()

    @every
    @prop
    @given(window=windows(), data=st.data())
    def test_empties_no_row_unless_it_is_a_hard_constraint(
        self, entry: Entry, window: Window, data: st.DataObject
    ) -> None:
        """Where a token was left before, one is left after."""
        logits, history = window
        alive = (logits > -torch.inf).any(dim=-1)

        processed = entry.make(data.draw(entry.parameters))(logits, history)

        assert entry.hard or (processed > -torch.inf).any(dim=-1)[alive].all()


class TestParametersPerRow:
    @with_rows
    @prop
    @given(window=windows(), data=st.data())
    def test_equal_the_scalars_row_by_row(self, entry: Entry, window: Window, data: st.DataObject) -> None:
        """A row's result is bit for bit what the scalar gives for the row alone."""
        logits, history = window
        values = a_value_for_each_row(data, entry, logits.shape[0])

        together = entry.make(values)(logits, history)

        for row, value in enumerate(values):
            one = slice(row, row + 1)
            assert torch.equal(entry.make(value)(logits[one], history.rows(one)), together[one])

    @with_rows
    @prop
    @given(window=windows(), data=st.data())
    def test_may_be_a_tensor(self, entry: Entry, window: Window, data: st.DataObject) -> None:
        """A tensor in its own dtype is what its numbers are."""
        logits, history = window
        tensor = torch.tensor(a_value_for_each_row(data, entry, logits.shape[0]))

        assert torch.equal(entry.make(tensor.tolist())(logits, history), entry.make(tensor)(logits, history))

    @with_neutral_rows
    @prop
    @given(window=windows(), data=st.data())
    def test_neutral_in_a_row_is_the_identity_there(
        self, entry: Entry, window: Window, data: st.DataObject
    ) -> None:
        """Rows that are off come out as they went in, whatever their neighbours do."""
        logits, history = window
        values = a_value_for_each_row(data, entry, logits.shape[0])
        off = data.draw(st.integers(0, logits.shape[0] - 1))
        values[off] = entry.neutral

        assert torch.equal(logits[off], entry.make(values)(logits, history)[off])

    @with_rows
    @prop
    @given(window=windows(), data=st.data())
    def test_of_another_batch_are_refused(self, entry: Entry, window: Window, data: st.DataObject) -> None:
        """The message says how many values there are and how many rows."""
        logits, history = window
        values = a_value_for_each_row(data, entry, logits.shape[0] + 1)

        with pytest.raises(ValueError, match=f"one value per row: got {len(values)} for {logits.shape[0]}"):
            entry.make(values)(logits, history)


class TestDeclarations:
    @declaring("row_independent")
    @prop
    @given(window=windows(), data=st.data())
    def test_row_independent(self, entry: Entry, window: Window, data: st.DataObject) -> None:
        """Rows in another order, some of them twice, come out as they did."""
        logits, history = window
        rows = torch.tensor(data.draw(st.lists(st.integers(0, len(logits) - 1), min_size=1, max_size=5)))
        processor = entry.make(data.draw(entry.parameters))

        together = processor(logits, history)

        assert torch.equal(together[rows], processor(logits[rows], history.rows(rows)))

    def test_all_but_these_are_row_independent(self) -> None:
        """A function is called with the number of the row."""
        dependent = {
            name
            for name, entry in CATALOGUE.items()
            if not entry.make(entry.example).row_independent  # type: ignore[attr-defined]
        }

        assert {"PrefixFunction"} == dependent

    @with_rows
    def test_nor_is_one_with_parameters_of_rows(self, entry: Entry) -> None:
        """Each is for its own row."""
        assert not entry.make([entry.example]).row_independent  # type: ignore[attr-defined]

    @declaring("keeps_argmax")
    @prop
    @given(window=windows(), data=st.data())
    def test_keeps_argmax(self, entry: Entry, window: Window, data: st.DataObject) -> None:
        """The largest logit stays the largest."""
        logits, history = window

        processed = entry.make(data.draw(entry.parameters))(logits, history)

        assert torch.equal(logits.argmax(dim=-1), processed.argmax(dim=-1))

    @declaring("shift_invariant")
    @prop
    @given(window=windows(dtype=torch.float64), shift=st.floats(-9.0, 9.0), data=st.data())
    def test_shift_invariant(self, entry: Entry, window: Window, shift: float, data: st.DataObject) -> None:
        """Logits moved as a whole give the same distribution."""
        logits, history = window
        processor = entry.make(data.draw(entry.parameters))

        there = processor(logits + shift, history).softmax(dim=-1)

        here = processor(logits, history).softmax(dim=-1)
        torch.testing.assert_close(there, here, rtol=0.0, atol=1e-9, equal_nan=True)

    @declaring("local")
    @prop
    @given(window=windows(), data=st.data())
    def test_local(self, entry: Entry, window: Window, data: st.DataObject) -> None:
        """Run on the survivors alone, a processor does to them what it does among the -inf."""
        logits, history = window
        value = data.draw(entry.parameters)

        assert_local(entry.make(value), logits, history)

    @declaring("local")
    @prop
    @given(window=windows(masked=False, vocab=1000), data=st.data())
    def test_local_in_a_wide_vocabulary(self, entry: Entry, window: Window, data: st.DataObject) -> None:
        """50 survivors of 1,000 tokens sum up to the same bits, at thresholds that are met exactly too."""
        logits, history = window
        rng = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
        survivors = torch.rand(logits.shape, generator=rng).topk(50).indices
        if data.draw(st.booleans()):  # each token half as likely as another, or as likely
            logits = torch.tensor(2.0, dtype=logits.dtype).log() * logits.round()
        logits = torch.full_like(logits, -torch.inf).scatter(-1, survivors, logits.gather(-1, survivors))
        value = data.draw(entry.parameters)

        assert_local(entry.make(value), logits, history)

    @pytest.mark.mostly_slow(every=32)
    @scalar_and_per_row
    def test_device_safe(self, entry: Entry, per_row: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """Declared exactly where nothing in the graph is known to be refused; the graph computes the same."""
        other = entry.example if entry.neutral is NONE else entry.neutral
        processor = entry.make([entry.example, other] if per_row else entry.example)
        ids, length = torch.arange(12).reshape(2, 1, 6) % 5, torch.full((2, 3), 4)
        inputs = (torch.randn(2, 3, 8), ids, length, torch.ones(2, dtype=torch.long), torch.arange(2))

        # Not every graph goes through the top-k rewrite.
        monkeypatch.setattr(lowering, "canonicalize_top_k", lambda module: None)
        lowered = lower(Alone(processor), inputs)

        findings = [str(finding) for finding in lint_graph(lowered)]
        assert processor.device_safe == (not findings), findings  # type: ignore[attr-defined]
        assert torch.equal(Alone(processor)(*inputs), lowered(*inputs))

    @declaring("local")
    @settings(deadline=None, max_examples=examples(10))
    @given(seed=st.integers(0, 2**32), data=st.data())
    def test_local_at_the_edge(self, entry: Entry, seed: int, data: st.DataObject) -> None:
        """Also for the two neighbouring parameters between which a token changes sides."""
        low, high = data.draw(entry.parameters), data.draw(entry.parameters)
        if isinstance(low, float | int):
            rng = torch.Generator().manual_seed(seed)
            survivors = 3 * torch.randn(50, generator=rng)
            places = torch.randperm(1000, generator=rng)[:50].sort().values
            logits = torch.full((1000,), -torch.inf).index_copy(0, places, survivors)[None, None]

            for value in edge(entry, survivors[None, None], low, high):
                assert_local(entry.make(value), logits, NOTHING)


def edge(entry: Entry, logits: Tensor, low: float, high: float) -> tuple[float, float]:
    """Neighbouring parameters between *low* and *high* that give different results, if any do."""
    first = entry.make(low)(logits, NOTHING)
    while low < (middle := _middle(low, high)) < high or high < middle < low:
        if torch.equal(first, entry.make(middle)(logits, NOTHING)):
            low = middle
        else:
            high = middle
    return low, high


def _middle(low: float, high: float) -> float:
    """Half way; of integers rounded down, which ends between neighbours."""
    return (low + high) // 2 if isinstance(low, int) else (low + high) / 2


def assert_local(processor: Processor, logits: Tensor, history: History) -> None:
    """Every column's survivors alone come out as they do among the ``-inf``."""
    processed = processor(logits, history)

    for row in range(logits.shape[0]):
        one = slice(row, row + 1)
        for column in range(logits.shape[1]):
            survives = logits[row, column] > -torch.inf
            if survives.any():
                alone = column_of(history.rows(one), column, garbage=0)
                rest = processor(logits[row, column, survives][None, None], alone)[0, 0]
                assert torch.equal(processed[row, column, survives], rest)


class Alone(torch.nn.Module):
    """A processor as a module of tensors."""

    def __init__(self, processor: Processor):
        super().__init__()
        self.processor = processor

    def forward(
        self, logits: Tensor, ids: Tensor, length: Tensor, prompt: Tensor, random_stream: Tensor
    ) -> Tensor:
        return self.processor(logits, History(ids, length, prompt, random_stream))


@pytest.mark.mostly_slow(every=6)
@scalar_and_per_row
def test_traces_into_one_graph(entry: Entry, per_row: bool) -> None:
    """torch.compile takes a processor whole, and a window of a new length needs no new graph."""
    torch.compiler.reset()
    other = entry.example if entry.neutral is NONE else entry.neutral
    processor = entry.make([entry.example, other] if per_row else entry.example)
    graphs = 0

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module.forward

    compiled = torch.compile(processor, fullgraph=True, backend=backend)
    for length in (1, 4, 7):
        logits = torch.randn(2, 3, 9)
        ids = torch.randint(0, 4, (2, 1, 9))
        history = History(
            ids, torch.tensor([[length], [2]]) + torch.arange(3), torch.ones(2).long(), ids[:, 0, 0]
        )

        assert torch.equal(processor(logits, history), compiled(logits, history))
    assert 1 == graphs
    torch.compiler.reset()


@with_rows
def test_lives_in_a_list_with_its_equal(entry: Entry) -> None:
    """Hugging Face merges lists with `in`: tensors must not raise there, nor equals be taken for one."""
    one, other = entry.make([entry.example, entry.example]), entry.make([entry.example, entry.example])

    assert one not in [other]
    assert one in [other, one]


@every
def test_is_frozen(entry: Entry) -> None:
    """A processor is immutable, also during a generation."""
    processor = entry.make(entry.example)

    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        processor.k = 3  # type: ignore[attr-defined]


@every
def test_survives_pickling(entry: Entry) -> None:
    """A processor may be sent to another process."""
    processor = entry.make(entry.example)

    assert repr(processor) == repr(pickle.loads(pickle.dumps(processor)))


@every
def test_declares_itself(entry: Entry) -> None:
    """Every processor has all four declarations."""
    processor = entry.make(entry.example)

    for name in ("keeps_argmax", "shift_invariant", "local", "device_safe"):
        assert isinstance(getattr(processor, name), bool)
