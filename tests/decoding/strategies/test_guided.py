"""Classifier-free guidance as a feeder."""

import random
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import (
    Batcher,
    BeamSearch,
    Generator,
    Guided,
    History,
    Logprobs,
    MaxNewTokens,
    Sample,
    TransformersModel,
)
from decodekit.decoding.cache.slots import Slots
from decodekit.processors import RepetitionPenalty, Temperature
from decodekit.speculation import (
    DraftModel,
    DraftTree,
    PromptLookup,
    SpeculativeGenerator,
    SuffixAutomaton,
    Tree,
)
from decodekit.testing import ScriptedDecoder

from ...strategies import examples
from ..engine.requests import check_table
from .reference import NEAR, guided_by_hand, scripted, text_of

PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [4], [7, 7, 0, 5]]
DRAFTERS = {
    "plain": lambda: None,
    "lookup": PromptLookup,
    "automaton": SuffixAutomaton,
    "model": lambda: DraftModel(scripted(3, NEAR)),
}


def negatives_of(negative: Any, prompts: list[list[int]]) -> list[list[int]]:
    """The negative prompt of each row, as it is documented."""
    if callable(negative):
        return [negative(prompt) for prompt in prompts]
    if negative is None:
        return [prompt[-1:] for prompt in prompts]
    return negative if isinstance(negative[0], list) else [negative] * len(prompts)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("seed", [None, 4], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "negative",
    [None, [8, 1], [[2], [3, 3, 3, 3, 3, 3, 3, 3, 3], [1, 0]], lambda prompt: prompt[-2:]],
    ids=["last", "one", "each", "function"],
)
def test_equals_the_equation_by_hand(negative: Any, seed: int | None, drafter: str) -> None:
    """Token for token, with every kind of drafter; a negative prompt may be longer than the prompt."""
    parts = {} if seed is None else {"sampler": Sample(seed)}
    guided = Guided(scripted(6), 1.8, negative)
    generate = Generator(guided, drafter=DRAFTERS[drafter](), stop=MaxNewTokens(20), **parts)
    expected = [
        text_of(guided_by_hand(prompt, lead, 1.8), prompt, 20, seed, row)
        for row, (prompt, lead) in enumerate(zip(PROMPTS, negatives_of(negative, PROMPTS), strict=True))
    ]
    result = generate(PROMPTS)

    assert expected == result.ids
    if drafter == "model":
        assert sum(result.statistics.accepted) > 0


@given(st.integers(0, 10**6))
def test_a_cache_of_any_past_changes_nothing(seed: int) -> None:
    """Of random calls on one decoder, some by others, each gives what a new decoder gives."""
    dice = random.Random(seed)
    decoder = scripted(4)
    guided = [Guided(decoder, 1.5), Guided(decoder, 2.5, [5, 6]), decoder]
    for _ in range(6):
        number = dice.randrange(3)
        start = [dice.randrange(2) for _ in range(dice.choice([0, 4, 18]))]
        prompts = [start + [dice.randrange(9) for _ in range(dice.randint(1, 3))] for _ in range(2)]
        parts = {
            "processors": RepetitionPenalty(1.2) | Temperature(0.9),
            "sampler": Sample(dice.randrange(9)),
            "stop": MaxNewTokens(dice.randint(1, 9)),
            "drafter": dice.choice([None, PromptLookup()]),
        }
        fresh = [Guided(scripted(4), 1.5), Guided(scripted(4), 2.5, [5, 6]), scripted(4)][number]

        assert Generator(fresh, **parts)(prompts).ids == Generator(guided[number], **parts)(prompts).ids


def test_one_forward_of_both_sides_a_token() -> None:
    """As many forwards as of the decoder without guidance, of as many rows as it has."""
    decoder = scripted(4)
    guided = Generator(Guided(decoder, 1.5, [1] * 5), stop=MaxNewTokens(9))([[1, 2], [3]])
    plain = Generator(scripted(4), stop=MaxNewTokens(9))([[1, 2], [3]])

    assert plain.statistics.forwards == guided.statistics.forwards == len(decoder.forwards)
    assert 4 * 8 == guided.statistics.columns
    assert 0 == guided.statistics.padding


class Advising(ScriptedDecoder):
    """A decoder of another toolkit, with a setting of its own."""

    def advise_width(self, columns: int) -> str:
        """That setting."""
        return f"Set speculation_length={columns}"


@pytest.mark.parametrize(
    ("decoder", "advice"),
    [(ScriptedDecoder, "Compile it with 9 among its widths"), (Advising, "Set speculation_length=9")],
)
def test_advice_on_widths_is_that_of_its_decoder(decoder: type[ScriptedDecoder], advice: str) -> None:
    """A draft that is too long is refused with what the decoder says of it."""
    guided = Guided(decoder(NEAR, batch_size=2, widths=(1, 5)), 1.5)

    assert advice == guided.advise_width(9)
    with pytest.raises(ValueError, match=f"columns that the decoder scores: got 8. {advice}"):
        Generator(guided, drafter=PromptLookup(), num_draft_tokens=8)


@pytest.mark.parametrize("seed", range(examples(30)))
def test_requests_that_share_it_give_what_each_gives_alone(seed: int) -> None:
    """Random requests, which join, pause, draft and leave."""
    dice = random.Random(seed)
    negative = dice.choice(
        [None, [1], [2, 0, 3, 3, 1], [1, 2, 3] * 5, lambda prompt: prompt[len(prompt) // 2 :]]
    )
    drafters = [PromptLookup(), DraftModel(scripted(3, NEAR))]
    by_row = {"row_widths": dice.choice([(), (5, 16)]), "copies_rows": dice.random() < 0.5}

    check_table(dice, lambda rows: Guided(scripted(2 * rows, **by_row), 1.6, negative), drafters, 3, 8)


@given(st.integers(0, 10**6))
def test_rows_are_copied_on_both_sides(seed: int) -> None:
    """And a text goes on from a copy as from the row itself, nothing of which is fed again."""
    dice = random.Random(seed)

    def rest(prompt: list[int]) -> list[int]:
        return prompt[1:]

    decoder = scripted(7, copies_rows=True)
    guided = Guided(decoder, 1.6, rest)
    generate = Generator(guided, stop=MaxNewTokens(5))
    # So long a text is fed in forwards of all rows, not copied while it is fed.
    prompts = [[row, *(dice.randrange(9) for _ in range(dice.randint(3, 4)))] for row in range(3)]
    generate(prompts)
    source = [dice.randrange(3) for _ in range(3)]

    assert guided.feeder().copy_rows(source)
    before = guided.feeder().counts.tokens
    again = [prompts[row] for row in source]
    assert Generator(Guided(scripted(6), 1.6, rest), stop=MaxNewTokens(5))(again).ids == generate(again).ids
    assert 2 * 3 * 5 == guided.feeder().counts.tokens - before
    assert not Guided(scripted(2), 1.6).feeder().copy_rows([0])
    with pytest.raises(ValueError, match=r"'source' must name one of 3 rows for each row: got \[0, 1\]"):
        guided.feeder().copy_rows([0, 1])


def test_a_long_prompt_is_fed_by_itself_where_the_decoder_can() -> None:
    """A forward of one row costs the negative side nothing; of several samples it is fed once."""
    decoder = scripted(8, row_widths=(5, 16), copies_rows=True)
    guided = Guided(decoder, 1.6, [2])
    prompt = [1, 2, 3, 4] * 8
    result = Generator(guided, sampler=Sample(1), stop=MaxNewTokens(4))(prompt, num_samples=4)
    plain = Generator(Guided(scripted(8), 1.6, [2]), sampler=Sample(1), stop=MaxNewTokens(4))([prompt] * 4)

    assert plain.ids == result.ids
    assert (5, 16) == guided.feeder().row_widths
    counts = guided.feeder().counts
    assert (32, 31) == (counts.row_columns, counts.row_tokens)
    assert 3 * 31 <= result.statistics.reused <= 3 * 32


@pytest.mark.parametrize("row_widths", [(), (5, 16)])
def test_a_row_waits_for_both_of_its_sides(row_widths: tuple[int, ...]) -> None:
    """A negative prompt that is longer than the prompt is fed in chunks beside a row that decodes."""
    guided = Guided(scripted(4, row_widths=row_widths), 1.6, [1, 2, 3, 4] * 6)
    parts = Generator(guided, stop=MaxNewTokens(9)).parts
    batcher = Batcher(guided, prefill_width=5)
    first = batcher.submit(parts, [5])
    events = [next(iter(first))]
    second = batcher.submit(parts, [6, 7])

    assert events[0].ids
    for handle, prompt in ((first, [5]), (second, [6, 7])):
        alone = Generator(Guided(scripted(2), 1.6, [1, 2, 3, 4] * 6), stop=MaxNewTokens(9))(prompt)

        assert alone.ids == handle.result().ids


def test_what_a_row_lacks_is_what_either_side_lacks() -> None:
    """Of tokens to feed, and of a newcomer's prompt."""
    guided = Guided(scripted(4), 1.6, [1, 2, 3])
    feeder, one = guided.feeder(), torch.ones(2, dtype=torch.int64)
    Generator(guided, stop=MaxNewTokens(1))([[5, 6, 7, 8], [5]])
    Generator(guided.decoder, stop=MaxNewTokens(1))([[5, 6, 7, 8], [5], [1, 4]])

    # The negative side of the first row holds one token of three.
    assert [2, 1] == feeder.overlap([5, 6, 7, 8])
    ids = torch.tensor([[[5, 6, 7, 8]], [[5, 9, 9, 9]]])
    history = History(ids, 4 * one[:, None], 4 * one, one)

    assert [2, 3] == feeder.missing(history, 4 * one).tolist()
    assert [4, 1] == feeder.held()


@pytest.mark.parametrize("max_gap", [None, 0.001])
def test_a_batcher_gives_each_request_what_it_has_alone(max_gap: float | None) -> None:
    """In chunks of a prompt too; the negative prompt of a row is its own last token."""
    prompts = [[token, 2, 3] * length for token, length in [(1, 9), (4, 1), (5, 3), (1, 9), (8, 2)]]
    parts = {"sampler": Sample(seed=3), "stop": MaxNewTokens(7)}
    batcher = Batcher(Guided(scripted(4), 1.6), prefill_width=5, max_gap=max_gap)
    drafting = Generator(Guided(scripted(4), 1.6), drafter=PromptLookup(), **parts).parts
    plain = Generator(Guided(scripted(4), 1.6), **parts).parts
    handles = [
        batcher.submit(drafting if number % 2 else plain, prompt, random_stream=number)
        for number, prompt in enumerate(prompts)
    ]
    for number, (handle, prompt) in enumerate(zip(handles, prompts, strict=True)):
        alone = Generator(Guided(scripted(2), 1.6), **parts)(prompt, random_streams=[number])

        assert alone.ids == handle.result().ids
    assert handles[3].result().statistics.reused > 20


def test_more_prompts_than_rows_take_turns() -> None:
    """With one negative prompt for all."""
    guided = Guided(scripted(4), 1.6, [3, 3])
    result = Generator(guided, stop=MaxNewTokens(5))([[1], [2, 4], [5], [6, 6, 6], [7]])
    alone = [
        Generator(Guided(scripted(2), 1.6, [3, 3]), stop=MaxNewTokens(5))(p).ids[0] for p in result.prompts
    ]

    assert alone == result.ids


def test_negative_prompts_of_rows_are_refused_where_requests_take_any_row() -> None:
    """In a batcher, and for more prompts than rows."""
    guided = Guided(scripted(4), 1.6, [[1], [2]])

    with pytest.raises(ValueError, match="nothing of its own for each row, such as a negative prompt"):
        Batcher(guided)
    with pytest.raises(ValueError, match="nothing of its own for each row"):
        Generator(guided)([[1], [2], [3]])
    with pytest.raises(ValueError, match="nothing of its own for each row"):
        BeamSearch(guided, beams=2)


def test_refused_where_nothing_says_where_a_prompt_ends() -> None:
    """New tokens follow the negative prompt too."""
    with pytest.raises(
        ValueError, match=r"Wrap the decoder that is guided, and use generate\(guidance_scale"
    ):
        TransformersModel(Guided(scripted(4), 1.6))  # type: ignore[arg-type]


def after_five(prompt: list[int]) -> list[int]:
    """What follows a 5, of which there must be one."""
    return prompt[prompt.index(5) + 1 :]


def test_a_function_that_raises_for_a_prompt_ends_its_request() -> None:
    """And no other, whether it runs already or comes after; rows without a request are not asked for."""
    generator = Generator(Guided(scripted(4), 1.6, after_five), stop=MaxNewTokens(6))
    alone = generator([5, 7]).ids
    with Batcher(generator.decoder) as batcher:
        handles = [batcher.submit(generator.parts, prompt) for prompt in ([5, 7], [1, 7], [1, 5], [5, 7])]
        for handle, raises in zip(handles, (False, True, True, False), strict=True):
            if raises:
                with pytest.raises(ValueError, match=r"not in list|the ids of one prompt"):
                    handle.result(timeout=60)
            else:
                assert alone == handle.result(timeout=60).ids


def test_a_guided_draft_is_not_asked_about_prompts_that_it_cannot_draft_for() -> None:
    """Its negative prompt might not fit either."""
    parts = {"stop": MaxNewTokens(5)}
    prompts = [[1, 2, 3] * 10, [1, 2]]

    def beginning(prompt: list[int]) -> list[int]:
        return prompt[:25]

    plain = Generator(Guided(scripted(4), 2.0, beginning), **parts)
    draft = DraftModel(Guided(scripted(4, NEAR, max_length=20), 2.0, beginning))
    drafting = Generator(plain.decoder, drafter=draft, num_draft_tokens=2, **parts)

    assert plain(prompts).ids == drafting(prompts).ids


def test_a_function_of_the_prompt_is_called_once_for_it() -> None:
    """And checked; its negative prompt takes no positions."""
    called: list[list[int]] = []

    def question(prompt: list[int]) -> list[int]:
        called.append(prompt)
        return prompt[1:] if prompt[0] else [*prompt, 1]

    guided = Guided(scripted(4, max_length=16), 1.5, question)
    generate = Generator(guided)
    result = generate([[1, 2, 3], [4, 5]])

    assert 16 == guided.shape.max_length
    assert ["max_length"] * 2 == result.finish_reasons
    assert [[1, 2, 3], [4, 5]] == called
    with pytest.raises(
        ValueError, match="'negative' must give at most as many tokens as its prompt has, 2: got 3"
    ):
        generate([0, 1])
    with pytest.raises(ValueError, match=r"'negative' must give the ids of one prompt: .* 1 to 16 tokens"):
        generate([1])
    with pytest.raises(TypeError, match="'negative' must give the ids of one prompt"):
        Generator(Guided(scripted(2), 1.5, lambda prompt: 3))([1])


@pytest.mark.parametrize("tree", [Tree.comb(3, 2, 2), Tree.comb(2, 2)])
@pytest.mark.parametrize("seed", [None, 3])
def test_draft_trees(tree: Tree, seed: int | None) -> None:
    """Both sides score the same tree."""
    parts = {"stop": MaxNewTokens(20), **({} if seed is None else {"sampler": Sample(seed)})}
    drafter = DraftTree(scripted(3, NEAR, tree_widths=(16,)), tree=tree)
    plain = Generator(Guided(scripted(6), 1.3, [4, 4]), **parts)(PROMPTS)
    result = Generator(Guided(scripted(6, tree_widths=(16,)), 1.3, [4, 4]), drafter=drafter, **parts)(PROMPTS)

    assert plain.ids == result.ids
    assert sum(result.statistics.accepted) > 0


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("tree", [None, Tree.of_children(2, 2)])
def test_a_draft_model_under_the_same_guidance(tree: Tree | None, seed: int | None) -> None:
    """Of the same logits every draft token is accepted; of near ones more than without guidance."""
    parts = {"stop": MaxNewTokens(20), **({} if seed is None else {"sampler": Sample(seed)})}

    def accepted(draft: Any) -> int:
        drafter = DraftModel(draft) if tree is None else DraftTree(draft, tree=tree)
        target = Guided(scripted(6, tree_widths=(16,)), 2.5, [4, 4])
        result = Generator(target, drafter=drafter, **parts)(PROMPTS)

        assert Generator(Guided(scripted(6), 2.5, [4, 4]), **parts)(PROMPTS).ids == result.ids
        return sum(result.statistics.accepted)

    same, near, plain = (
        accepted(Guided(scripted(6, tree_widths=(16,)), 2.5, [4, 4])),
        accepted(Guided(scripted(6, NEAR, tree_widths=(16,)), 2.5, [4, 4])),
        accepted(scripted(3, NEAR, tree_widths=(16,))),
    )

    assert same >= near >= plain
    if tree is None:
        assert same > near > plain
        # All but the first token of a row and one token of the target's in each of its four steps.
        assert 3 * (20 - 1 - 4) == same


def test_a_guided_draft_with_fewer_positions_than_the_prompt_drafts_nothing() -> None:
    """And the chunks of a batcher do not feed it."""
    draft = Guided(scripted(4, NEAR, max_length=16), 1.5, [1, 1])
    parts = Generator(scripted(1), drafter=DraftModel(draft), stop=MaxNewTokens(6)).parts
    batcher = Batcher(scripted(2), prefill_width=5)
    prompts = [[1, 2, 3] * 7, [4] * 14, [5, 6]]
    handles = [batcher.submit(parts, prompt) for prompt in prompts]

    assert Generator(scripted(3), stop=MaxNewTokens(6))(prompts).ids == [
        one.result().ids[0] for one in handles
    ]


def test_trees_need_a_decoder_that_scores_them() -> None:
    """Refused when the generator is built."""
    drafter = DraftTree(scripted(3, NEAR, tree_widths=(16,)), tree=Tree.comb(2, 2))
    with pytest.raises(ValueError, match="'decoder' must score trees"):
        Generator(Guided(scripted(2), 1.3), drafter=drafter)


def test_an_adaptive_length_times_the_decoder() -> None:
    """The default of a speculative generator; the text is that of plain decoding."""
    guided = Guided(scripted(4), 1.3)
    plain = Generator(guided, stop=MaxNewTokens(20))(PROMPTS[:2])
    fast = SpeculativeGenerator(guided, DraftModel(scripted(2, NEAR)), stop=MaxNewTokens(20))

    assert plain.ids == fast(PROMPTS[:2]).ids
    assert " for 5;" in str(fast.num_draft_tokens)


def test_up_to_the_last_position_of_either_side() -> None:
    """A row ends where the longest negative prompt leaves no position, whatever the prompt."""
    guided = Guided(scripted(2, max_length=16), 1.5, [1, 2, 3, 4])
    generate = Generator(guided, stop=MaxNewTokens(99))

    assert 13 == guided.shape.max_length
    assert ["max_length"] == generate([5]).finish_reasons
    assert 13 == len(generate([5]).ids[0])
    assert 1 == len(generate([5] * 13).ids[0])
    with pytest.raises(ValueError, match="must have 1 to 13 tokens"):
        generate([5] * 14)


def test_log_probabilities_are_of_the_guided_distribution() -> None:
    """Raw ones too; those of a prompt are refused."""
    generate = Generator(Guided(scripted(2), 1.5, [2]), stop=MaxNewTokens(3))
    result = generate([1], logprobs=Logprobs())
    by_hand = guided_by_hand([1], [2], 1.5)
    assert result.logprobs is not None
    for number, one in enumerate(result.logprobs[0]):
        expected = by_hand(result.ids[0][:number]).double().log_softmax(-1)[one.id]

        assert float(expected) == pytest.approx(one.logprob, abs=1e-5)
    with pytest.raises(
        ValueError, match=r"scores new tokens only.* 1 of the 3 tokens of the prompt of row 0"
    ):
        generate.prompt_logprobs([1, 2, 3])


def test_the_decoder_itself_stays_usable() -> None:
    """Between the steps of a guided stream; but not while its logits are in use."""
    decoder = scripted(2)
    generate = Generator(Guided(decoder, 1.5), stop=MaxNewTokens(9))
    expected = generate([1]).ids[0]
    ids: list[int] = []
    for event in generate.stream([1]):
        ids += event.ids
        Generator(decoder, stop=MaxNewTokens(2))([[6, 6], [6]])

    assert expected == ids

    def nosy(logits: Tensor, history: History) -> Tensor:
        Generator(decoder, stop=MaxNewTokens(1))([1])
        return logits

    with pytest.raises(RuntimeError, match="must not use the decoder whose logits it looks at"):
        Generator(Guided(decoder, 1.5), processors=nosy)([1])


def test_strings_with_a_tokenizer() -> None:
    """Encoded once."""

    def tokenizer(text: str) -> dict[str, list[int]]:
        return {"input_ids": [int(token) for token in text.split()]}

    parts = {"stop": MaxNewTokens(4)}
    expected = Generator(Guided(scripted(2), 1.5, [3, 4]), **parts)([1]).ids

    assert expected == Generator(Guided(scripted(2), 1.5, "3 4", tokenizer), **parts)([1]).ids
    with pytest.raises(
        TypeError, match=r"'negative' must be None, a prompt, or one for each row: .* tokenizer"
    ):
        Guided(scripted(2), 1.5, "3 4")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((scripted(1), 1.5), ValueError, "'decoder' must have 2 rows for each prompt"),
        ((scripted, 1.5), TypeError, "'decoder' must"),
        ((scripted(2), float("nan")), ValueError, "'scale' must be finite: got nan"),
        ((scripted(2), "1.5"), TypeError, "'scale' must be a number"),
        ((scripted(6), 1.5, [[1], [2]]), ValueError, "one for each of the 3 rows: got 2"),
        ((scripted(2), 1.5, []), ValueError, "'negative' must be None"),
        ((scripted(2), 1.5, [99]), ValueError, "'negative' must be None.* 0 to 8, the vocabulary: got 99"),
        ((scripted(2, max_length=16), 1.5, [1] * 17), ValueError, "'negative' must be .* 1 to 16 tokens"),
    ],
)
def test_bad_arguments_are_refused(arguments: Any, error: type[Exception], message: str) -> None:
    """When it is built, with the rule and the value."""
    with pytest.raises(error, match=message):
        Guided(*arguments)


def test_a_feed_is_checked_before_anything_is_fed() -> None:
    """Lengths and needs, and what the device cannot do."""
    decoder = scripted(2)
    feeder = Guided(decoder, 1.5).feeder()
    one = torch.ones(1, dtype=torch.int64)
    history = History(torch.zeros(1, 1, 9, dtype=torch.int64), one[:, None], one, one)
    with pytest.raises(ValueError, match="'sample' must be False"):
        feeder.feed(history, one, one, sample=True)
    with pytest.raises(ValueError, match="'need' must be <= 5"):
        feeder.feed(history, 9 * one, 6 * one)

    assert [] == decoder.forwards
    assert Guided(decoder, 1.5).feeder() is not feeder
    assert feeder.lock is Slots.of(decoder).lock


def test_capabilities_are_those_of_the_decoder() -> None:
    """What is proved of its logits, and whether it is divided over processes."""

    class Exact(type(scripted(2))):  # type: ignore[misc]
        bit_exact, in_lockstep = True, True

    exact = Exact(NEAR, batch_size=2)

    assert Guided(exact, 1.5).bit_exact
    assert Guided(Guided(Exact(NEAR, batch_size=4), 2.0), 1.5).in_lockstep
    assert (exact,) == Guided(exact, 1.5).decoders
    assert not Guided(scripted(2), 1.5).bit_exact
    assert Generator(Guided(exact, 1.5), stop=MaxNewTokens(1))([1]).statistics.bit_exact
