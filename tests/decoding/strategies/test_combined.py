"""Ensembles of decoders."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.decoding import (
    Batcher,
    BeamSearch,
    Combined,
    Contrast,
    Generator,
    Guided,
    History,
    MaxNewTokens,
    MeanLogProbs,
    MeanProbs,
    Sample,
)
from decodekit.neuron_backend import CompiledDecoder
from decodekit.processors import RepetitionPenalty
from decodekit.speculation import (
    DraftModel,
    DraftTree,
    PromptLookup,
    SpeculativeGenerator,
    SuffixAutomaton,
    Tree,
)

from ...strategies import examples
from ..engine.requests import check_table
from .reference import NEAR, OTHER, TABLE, after, scripted, text_of

PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [4], [7, 7, 0, 5]]
COMBINATIONS = {
    "log-probs": (MeanLogProbs, lambda a, b: (a.log_softmax(-1) + b.log_softmax(-1)) / 2),
    "probs": (MeanProbs, lambda a, b: (a.softmax(-1) + b.softmax(-1)).log()),
    "contrast": (
        lambda: Contrast(0.2),
        lambda a, b: torch.where(
            a.softmax(-1) >= 0.2 * a.softmax(-1).max(), a.log_softmax(-1) - b.log_softmax(-1), -torch.inf
        ),
    ),
    "own": (lambda: lambda logits: logits[0] - logits[1] / 2, lambda a, b: a - b / 2),
}


def combined(rows: int = 3, **options: Any) -> Combined:
    """Two decoders over tables."""
    return Combined([scripted(rows), scripted(rows, OTHER)], **options)


@pytest.mark.parametrize("drafter", [None, PromptLookup(), SuffixAutomaton(), DraftModel(scripted(3, NEAR))])
@pytest.mark.parametrize("seed", [None, 4], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", COMBINATIONS)
def test_equals_the_equation_by_hand(kind: str, seed: int | None, drafter: Any) -> None:
    """Token for token, with every kind of drafter."""
    make, by_hand = COMBINATIONS[kind]
    parts = {} if seed is None else {"sampler": Sample(seed)}
    decoder = combined(combine=make())
    result = Generator(decoder, drafter=drafter, stop=MaxNewTokens(20), **parts)(PROMPTS)
    for row, prompt in enumerate(PROMPTS):

        def logits(new: list[int], prompt: list[int] = prompt) -> Tensor:
            return by_hand(after(TABLE, prompt + new), after(OTHER, prompt + new))

        assert text_of(logits, prompt, 20, seed, row) == result.ids[row]


def test_decoders_of_different_shapes() -> None:
    """Rows, positions and scored columns are those all have; prompts are fed in each one's own widths."""
    parts = {"stop": MaxNewTokens(99), "drafter": PromptLookup(), "num_draft_tokens": 2}
    one = scripted(2, max_length=30, widths=(1, 3, 8), scored_width=3)
    other = scripted(4, OTHER, max_length=60, widths=(2, 16), scored_width=16)
    decoder = Combined([one, other])
    prompts = [[1, 2] * 6, [3]]

    assert (2, 30, (1, 2, 3, 8, 16), 3) == (
        decoder.shape.batch_size,
        decoder.shape.max_length,
        decoder.shape.widths,
        decoder.shape.scored_width,
    )
    alike = Combined([scripted(2, max_length=30), scripted(2, OTHER, max_length=30)])
    assert Generator(alike, **parts)(prompts).ids == Generator(decoder, **parts)(prompts).ids
    with pytest.raises(
        ValueError, match=r"at most 2, .* got 4. Compile each of the combined decoders with 5"
    ):
        Generator(decoder, drafter=PromptLookup(), num_draft_tokens=4)


def test_an_adaptive_length_times_decoders_of_different_widths() -> None:
    """A width takes each decoder's smallest that fits."""
    decoder = Combined([scripted(2), scripted(2, OTHER, widths=(2, 4, 8), scored_width=8)])
    fast = SpeculativeGenerator(decoder, PromptLookup(), stop=MaxNewTokens(9))

    assert Generator(decoder, stop=MaxNewTokens(9))(PROMPTS[:2]).ids == fast(PROMPTS[:2]).ids
    for width in (1, 2, 4, 5):
        assert f" for {width}," in str(fast.num_draft_tokens).replace(";", ",")


@given(st.integers(0, 10**6))
def test_other_users_of_its_decoders_change_nothing(seed: int) -> None:
    """What they overwrite is fed again, to that decoder alone."""
    dice = random.Random(seed)
    one, other = scripted(2), scripted(4, OTHER)
    users = [Combined([one, other]), one, other, Guided(other, 1.5), Combined([other, one], MeanProbs())]
    for _ in range(6):
        number = dice.randrange(5)
        a, b = scripted(2), scripted(4, OTHER)
        fresh = [Combined([a, b]), a, b, Guided(b, 1.5), Combined([b, a], MeanProbs())][number]
        start = [dice.randrange(2) for _ in range(dice.choice([0, 4, 18]))]
        prompts = [start + [dice.randrange(9) for _ in range(dice.randint(1, 3))] for _ in range(2)]
        parts = {
            "processors": RepetitionPenalty(1.2),
            "sampler": Sample(dice.randrange(9)),
            "stop": MaxNewTokens(dice.randint(1, 9)),
            "drafter": dice.choice([None, PromptLookup()]),
        }

        assert Generator(fresh, **parts)(prompts).ids == Generator(users[number], **parts)(prompts).ids


@pytest.mark.parametrize("seed", range(examples(30)))
def test_requests_that_share_it_give_what_each_gives_alone(seed: int) -> None:
    """Random requests, which join, pause, draft and leave."""
    dice = random.Random(seed)
    drafters = [PromptLookup(), DraftModel(scripted(3, NEAR))]
    by_row = [
        {"row_widths": dice.choice([(), (5, 16), (1, 5)]), "copies_rows": dice.random() < 0.5}
        for _ in range(2)
    ]

    def make(rows: int) -> Combined:
        return Combined([scripted(rows, **by_row[0]), scripted(rows + 1, OTHER, **by_row[1])])

    check_table(dice, make, drafters, 3, 8)


def test_rows_are_copied_where_all_decoders_can() -> None:
    """Where one cannot, it is fed what it lacks; the text is the same."""
    prompts, source = [[1, 2, 3, 4] * 5, [5], [6, 7]], [2, 0, 0]
    for copies in ((True, True), (True, False)):
        decoder = Combined(
            [scripted(3, copies_rows=copies[0]), scripted(4, OTHER, copies_rows=copies[1])], MeanProbs()
        )
        generate, feeder = Generator(decoder, stop=MaxNewTokens(5)), decoder.feeder()
        generate(prompts)

        assert all(copies) == feeder.copy_rows(source)
        before, again = feeder.counts.tokens, [prompts[row] for row in source]
        fresh = Generator(combined(combine=MeanProbs()), stop=MaxNewTokens(5))

        assert fresh(again).ids == generate(again).ids
        assert all(copies) == (2 * 3 * 5 == feeder.counts.tokens - before)
    with pytest.raises(ValueError, match="'source' must name one of 3 rows"):
        feeder.copy_rows([0, 1, 3])


def test_rows_are_fed_by_themselves_where_all_decoders_can() -> None:
    """The columns of a chunk count once."""
    by_row: dict[str, Any] = {"row_widths": (5, 16), "copies_rows": True}
    decoder = Combined([scripted(4, **by_row), scripted(4, OTHER, **by_row)])
    prompt = [1, 2, 3, 4] * 8
    result = Generator(decoder, sampler=Sample(1), stop=MaxNewTokens(4))(prompt, num_samples=4)

    assert Generator(combined(4), sampler=Sample(1), stop=MaxNewTokens(4))([prompt] * 4).ids == result.ids
    counts = decoder.feeder().counts
    assert (32, 31) == (counts.row_columns, counts.row_tokens)
    assert 3 * 31 <= result.statistics.reused <= 3 * 32
    assert () == Combined([scripted(4, **by_row), scripted(4, OTHER)]).feeder().row_widths


def test_in_a_batcher_with_a_bounded_gap() -> None:
    """Each request gives what it gives alone; a forward of both decoders is one step of so many columns."""
    batcher = Batcher(combined(2), prefill_width=5, max_gap=0.001)
    parts = Generator(combined(), sampler=Sample(3), stop=MaxNewTokens(7)).parts
    prompts = [[1, 2, 3] * 6, [4], [5, 6] * 4, [1, 2, 3] * 6]
    handles = [batcher.submit(parts, prompt, random_stream=n) for n, prompt in enumerate(prompts)]
    for number, (handle, prompt) in enumerate(zip(handles, prompts, strict=True)):
        alone = Generator(combined(1), sampler=Sample(3), stop=MaxNewTokens(7))(prompt, [number])

        assert alone.ids == handle.result().ids
    assert set(batcher._table.pace._seconds) <= {1, 5, 16}


def test_counts_one_forward_of_each_decoder_as_one() -> None:
    """And the columns of both."""
    result = Generator(combined(2), stop=MaxNewTokens(9))([[1, 2], [3]])
    plain = Generator(scripted(2), stop=MaxNewTokens(9))([[1, 2], [3]])

    assert plain.statistics.forwards == result.statistics.forwards
    assert 2 * plain.statistics.columns == result.statistics.columns
    assert 0 == result.statistics.padding


def test_a_draft_model_may_be_the_amateur() -> None:
    """It is fed by both through the same record, so that only its draft tokens are fed twice."""
    expert, amateur = scripted(2), scripted(2, NEAR)
    decoder = Combined([expert, amateur], Contrast(0.1))
    plain = Generator(decoder, stop=MaxNewTokens(20))([[1, 2, 3]])
    fast = SpeculativeGenerator(decoder, DraftModel(amateur), 4, stop=MaxNewTokens(20))([[1, 2, 3]])

    assert plain.ids == fast.ids


@pytest.mark.parametrize("seed", [None, 3])
def test_draft_trees(seed: int | None) -> None:
    """Every decoder scores the same tree."""
    parts = {"stop": MaxNewTokens(20), **({} if seed is None else {"sampler": Sample(seed)})}
    trees = Combined([scripted(3, tree_widths=(16,)), scripted(3, NEAR, tree_widths=(12, 20))])
    drafter = DraftTree(scripted(3, NEAR, tree_widths=(16,)), tree=Tree.comb(3, 2, 2))
    plain = Generator(Combined([scripted(3), scripted(3, NEAR)]), **parts)(PROMPTS)
    result = Generator(trees, drafter=drafter, **parts)(PROMPTS)

    assert (12, 16) == trees.feeder().tree_widths
    assert plain.ids == result.ids
    assert sum(result.statistics.accepted) > 0


def test_threads_with_the_decoders_in_either_order() -> None:
    """No deadlock, and each has its own text."""
    one, other = scripted(4), scripted(4, OTHER)
    users = [
        Combined([one, other]),
        Combined([other, one]),
        one,
        Guided(other, 1.5),
        Combined([other, Guided(one, 2)]),
    ]
    generators = [Generator(user, sampler=Sample(1), stop=MaxNewTokens(25)) for user in users]
    expected = [generate([[1, 2], [3]]).ids for generate in generators]
    found: list[Any] = [None] * len(users)

    def run(number: int) -> None:
        found[number] = [generators[number]([[1, 2], [3]]).ids for _ in range(4)]

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(users))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert [[ids] * 4 for ids in expected] == found


def test_its_decoders_are_not_used_while_its_logits_are() -> None:
    """By a processor, or by the combination itself."""
    one, other = scripted(2), scripted(2, OTHER)

    def nosy(logits: Tensor, history: History) -> Tensor:
        Generator(other, stop=MaxNewTokens(1))([1])
        return logits

    with pytest.raises(RuntimeError, match="must not use the decoder whose logits it looks at"):
        Generator(Combined([one, other]), processors=nosy)([1])

    assert 1 == len(Generator(other, stop=MaxNewTokens(1))([1]).ids[0])


@pytest.mark.parametrize("reader", ["beams", "prompt log-probabilities", "logits", "tree"])
def test_its_decoders_are_not_used_by_the_combination(reader: str) -> None:
    """Whatever reads the combined logits."""
    one, other = (scripted(2, table, tree_widths=(8,)) for table in (TABLE, OTHER))

    def nosy(logits: Any) -> Tensor:
        # A tree has several columns; a plain step, which comes first, has one.
        if begun and (reader != "tree" or logits[0].shape[1] > 1):
            Generator(other, stop=MaxNewTokens(1))([1])
        return MeanProbs()(logits)

    begun = False
    decoder, tree = Combined([one, other], nosy), DraftTree(scripted(2), Tree.comb(2, 2))
    begun = True
    uses: dict[str, Callable[[], Any]] = {
        "beams": lambda: BeamSearch(decoder, beams=2)([1]),
        "prompt log-probabilities": lambda: Generator(decoder).prompt_logprobs([1, 2, 3]),
        "logits": lambda: Generator(decoder).logits([1, 2]),
        "tree": lambda: SpeculativeGenerator(decoder, tree)([1]),
    }

    with pytest.raises(RuntimeError, match="must not use the decoder whose logits it looks at"):
        uses[reader]()


@pytest.mark.parametrize("kind", ["log-probs", "probs", "contrast"])
def test_equals_a_loop_over_stock_models(kind: str, tiny_model: Callable[..., PreTrainedModel]) -> None:
    """Greedy in float64, with a draft too; in contrast with its own first layer, as DoLa does."""
    model, other = (tiny_model(name, torch.float64) for name in ("llama", "qwen2"))
    options: dict[str, Any] = {"batch_size": 2, "max_length": 64, "widths": (1, 5, 16)}
    expert = CompiledDecoder(model, **options)
    second = CompiledDecoder(other, **options)
    if kind == "contrast":
        second = expert.early_exit(1, widths=(1, 5, 16), scored_width=16)
    make, by_hand = COMBINATIONS[kind]

    def second_logits(ids: Tensor) -> Tensor:
        if kind != "contrast":
            return other(ids).logits[0, -1]
        hidden = model(ids, output_hidden_states=True).hidden_states[1]
        return model.lm_head(model.model.norm(hidden))[0, -1]

    prompts = [list(range(3, 20)), [11, 5, 2]]
    expected = []
    with torch.no_grad():
        for prompt in prompts:
            ids = list(prompt)
            for _ in range(20):
                tokens = torch.tensor([ids])
                ids.append(int(by_hand(model(tokens).logits[0, -1], second_logits(tokens)).argmax()))
            expected.append(ids)
    decoder = Combined([expert, second], make())
    for drafter in (None, PromptLookup()):
        assert expected == Generator(decoder, drafter=drafter, stop=MaxNewTokens(20))(prompts).sequences


def test_capabilities_are_those_of_all() -> None:
    """What is proved of one is not of the others, or of a function."""

    class Exact(type(scripted(2))):  # type: ignore[misc]
        bit_exact = True

    class Divided(Exact):
        in_lockstep = True

    exact, divided = Exact(TABLE), Divided(OTHER)

    assert Combined([exact, divided]).bit_exact
    assert not Combined([exact, divided], lambda logits: logits[0]).bit_exact
    assert not Combined([exact, scripted(1)]).bit_exact
    assert Combined([exact, divided]).in_lockstep
    assert not Combined([exact, scripted(1)]).in_lockstep
    assert (exact, divided) == Combined([exact, divided]).decoders
    with pytest.raises(ValueError, match="lockstep"):
        Batcher(Combined([exact, divided]))


def test_negative_prompts_of_rows_inside_are_refused_in_a_batcher() -> None:
    """As those of the guided decoder itself."""
    with pytest.raises(ValueError, match="nothing of its own for each row"):
        Batcher(Combined([Guided(scripted(4), 1.5, [[1], [2]]), scripted(2, OTHER)]))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Combined([scripted(1)]), ValueError, "'members' must be 2 decoders or more: got 1"),
        (lambda: Combined(scripted(1)), TypeError, "'members' must be several decoders"),
        (lambda: Combined([scripted(1), TABLE]), TypeError, "'decoder' must have a shape"),
        (lambda: Combined([scripted(1), scripted(1, TABLE[:, :5])]), ValueError, r"got the sizes \[9, 5\]"),
        (lambda: Combined([(one := scripted(2)), one]), ValueError, "got the same decoder twice"),
        (lambda: Combined([(one := scripted(2)), Guided(one, 1.5)]), ValueError, "the same decoder twice"),
        (lambda: combined(combine=MeanProbs), TypeError, "'combine' must be a function"),
        (
            lambda: combined(combine=lambda x: x[0][..., :2]),
            ValueError,
            r"shape \[1, 1, 9\], .* got \[1, 1, 2\]",
        ),
        (lambda: combined(combine=lambda x: None), ValueError, "as it is given: got None"),
        (lambda: combined(combine=MeanProbs([1, 2, 3])), ValueError, "one for each of 2 decoders"),
        (lambda: Combined([scripted(1) for _ in range(3)], Contrast()), ValueError, "amateur: got 3"),
    ],
)
def test_bad_arguments_are_refused(make: Any, error: type[Exception], message: str) -> None:
    """When it is built, with the rule and the value."""
    with pytest.raises(error, match=message):
        make()


def test_a_feed_is_checked_before_anything_is_fed() -> None:
    """By the shape that all have."""
    decoder = combined()
    one = torch.ones(1, dtype=torch.int64)
    history = History(torch.zeros(1, 1, 9, dtype=torch.int64), one[:, None], one, one)
    with pytest.raises(ValueError, match="'sample' must be False"):
        decoder.feeder().feed(history, one, one, sample=True)
    with pytest.raises(ValueError, match="'need' must be <= 5"):
        decoder.feeder().feed(history, 9 * one, 6 * one)

    assert 0 == decoder.feeder().counts.forwards
