"""Sessions: every turn is the call with its ids, and what the cache holds is not fed again."""

import gc
import random
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import (
    Batcher,
    Generator,
    History,
    MaxNewTokens,
    Sample,
    Session,
    SessionFullError,
    StopStrings,
    Turn,
)
from decodekit.decoding.cache.slots import Slots
from decodekit.decoding.serving.conversation import ids_of
from decodekit.processors import RepetitionPenalty, Temperature
from decodekit.speculation import PromptLookup
from decodekit.testing import ScriptedDecoder

from .chat_tokenizer import ENDLESS, FORGETFUL, PLAIN, REFUSING, TRIMMING, VOCAB_SIZE, chat_tokenizer

TABLE = 2 * torch.randn(97, VOCAB_SIZE, generator=torch.Generator().manual_seed(3))
LETTERS = "abcdefgh \n"


def scripted(rows: int = 1, **options: Any) -> ScriptedDecoder:
    """A decoder over the tokenizer's vocabulary."""
    return ScriptedDecoder(TABLE, **{"batch_size": rows, "max_length": 512, **options})


def generator(decoder: Any = None, template: str = PLAIN, **parts: Any) -> Generator:
    """A generator with a chat template."""
    decoder = scripted() if decoder is None else decoder
    return Generator(decoder, **{"tokenizer": chat_tokenizer(template), "stop": MaxNewTokens(12), **parts})


def hear(answer: Any) -> list[int]:
    """The ids of an answer, to its end."""
    return [token for event in answer for token in event.ids]


def require_calls(session: Session, fresh: Generator) -> None:
    """Every turn is that of a call with its ids."""
    for turn in session.turns:
        result = fresh([turn.prompt], random_streams=[turn.random_stream])
        assert result.ids == [turn.ids]
        assert result.finish_reasons == [turn.finish_reason]


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"sampler": Sample(seed=5), "processors": RepetitionPenalty(1.2) | Temperature(1.3)},
    "drafted": {"drafter": PromptLookup(), "num_draft_tokens": 3},
    "stopped": {"stop": StopStrings(["cd", "e "], chat_tokenizer(), hide=True) | MaxNewTokens(20)},
}


@pytest.mark.parametrize("template", [PLAIN, ENDLESS, TRIMMING, FORGETFUL])
@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 10**6))
def test_turns_are_calls(kind: str, template: str, seed: int) -> None:
    """Of whatever is said, taken back, said instead, broken off, branched and saved."""
    dice = random.Random(seed)
    talk, fresh = (generator(template=template, **KINDS[kind]) for _ in range(2))
    sessions = [Session(talk, system=dice.choice([None, "abc"]), random_stream=dice.randrange(3))]

    for _ in range(dice.randrange(2, 9)):
        session = dice.choice(sessions)
        action = dice.choice(["say", "say", "break", "edit", "rewind", "branch"])
        text = "".join(dice.choices(LETTERS, k=dice.randrange(1, 8)))
        if action == "branch":
            sessions.append(session.branch(random_stream=dice.choice([None, 9])))
        elif action in ("edit", "rewind") and session.turns:
            turn = dice.randrange(-len(session.turns), len(session.turns))
            if action == "edit":
                hear(session.edit(turn, text))
            else:
                session.rewind(turn)
        elif action == "break":
            for _ in zip(range(3), session.say(text), strict=False):
                pass
            if session.turns and session.turns[-1].finish_reason is None:
                broken = session.turns[-1]
                whole = fresh([broken.prompt], random_streams=[broken.random_stream]).ids[0]
                assert broken.ids == whole[: len(broken.ids)]
                session.rewind()
        else:
            hear(session.say(text))
        for each in sessions:
            require_whole(each)

    for session in sessions:
        require_calls(session, fresh)


def require_whole(session: Session) -> None:
    """The ids of each turn say what the template of its messages says, whatever their encoding."""
    tokenizer = session.server.tokenizer  # type: ignore[union-attr]  # of generators
    said: list[Any] = [] if session.system is None else [{"role": "system", "content": session.system}]
    for turn in session.turns:
        said += turn.messages
        whole = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        assert whole == "".join(segment.text for segment in turn.segments)
        for segment in turn.segments:
            shown = tokenizer.decode(list(segment.ids), skip_special_tokens=False)
            # Special tokens within an answer are not in its text.
            assert segment.text == shown or segment.text == tokenizer.decode(
                list(segment.ids), skip_special_tokens=True
            )
        said.append({"role": "assistant", "content": turn.text})


@given(seed=st.integers(0, 10**6))
def test_generated_ids_are_kept_where_the_template_only_adds(seed: int) -> None:
    """However they would be encoded, and only what is new is fed."""
    dice = random.Random(seed)
    decoder = scripted()
    session = Session(generator(decoder, sampler=Sample(seed=seed), stop=MaxNewTokens(dice.randrange(1, 20))))
    slots = Slots.of(decoder)
    before: list[int] = []
    for _ in range(4):
        fed = slots.counts.tokens
        hear(session.say("".join(dice.choices(LETTERS, k=5))))
        turn = session.turns[-1]

        assert 0 == turn.rewritten
        kept = ids_of(turn.segments[:-1])
        assert before[: len(kept)] == kept
        # The last token of an answer is not in the cache, unless a hidden one after it was left out.
        reused = min(len(kept), max(0, len(before) - 1))
        assert reused == turn.statistics.reused
        assert len(turn.prompt) - reused + len(turn.ids) - 1 == slots.counts.tokens - fed
        before = session.ids


def test_edits_and_rewinds_feed_what_changed() -> None:
    """Up to the turn that is replaced everything is in the cache."""
    decoder = scripted()
    session, slots = Session(generator(decoder)), Slots.of(decoder)
    for text in ("abcd", "ef", "gh"):
        hear(session.say(text))
    second = session.turns[1]
    begin = len(ids_of(second.segments[:-1]))

    fed = slots.counts.tokens
    hear(session.edit(1, "ea"))
    edited = session.turns[1]

    assert 2 == len(session.turns)
    common = len(edited.prompt) - (slots.counts.tokens - fed - len(edited.ids) + 1)
    assert begin < common <= begin + 4
    assert common == edited.statistics.reused

    session.rewind(-1)
    fed = slots.counts.tokens
    hear(session.say("ea"))

    assert edited.ids == session.turns[1].ids
    assert slots.counts.tokens - fed == len(edited.ids)
    assert edited.statistics.tokens + session.turns[0].statistics.tokens == session.statistics.tokens


def test_a_rewritten_history_says_what_it_costs(caplog: pytest.LogCaptureFixture) -> None:
    """The tokens from the first that differs on, in the turn and in the log; and nothing where none does."""
    caplog.set_level("INFO", logger="decodekit")
    session = Session(generator(template=FORGETFUL, sampler=Sample(seed=2), stop=MaxNewTokens(30)))
    costs = []
    for text in ("ab", "ac", "ad", "ae"):
        before = session.ids
        hear(session.say(text))
        turn = session.turns[-1]
        costs.append(turn.rewritten)
        common = next(
            (i for i, (a, b) in enumerate(zip(before, turn.prompt, strict=False)) if a != b), len(before)
        )
        hidden = session.turns[-2].answer[-1:] if len(session.turns) > 1 else ()
        left_out = len(hidden[0].ids) if hidden and hidden[0].hidden else 0
        assert turn.rewritten in (len(before) - common, len(before) - common - left_out)

    assert any(costs)
    assert costs[0] == 0
    assert sum(map(bool, costs)) == len(caplog.records)
    assert f"the last {next(filter(None, costs))} of" in caplog.records[0].message


def test_branches_are_independent() -> None:
    """Each goes on by itself, with the same answers to the same, and others from another random stream."""
    session = Session(generator(sampler=Sample(seed=1)))
    hear(session.say("ab"))
    same, other = session.branch(), session.branch(random_stream=7)
    assert session.ids == same.ids == other.ids

    answers = [hear(each.say("cd")) for each in (session, same, other)]

    assert answers[0] == answers[1] != answers[2]
    same.rewind(0)
    assert (2, 0, 2) == tuple(len(each.turns) for each in (session, same, other))


def test_random_streams_of_a_turn() -> None:
    """One of its own gives another answer, and is the turn's."""
    session = Session(generator(sampler=Sample(seed=1)))
    first = hear(session.say("ab"))
    second = hear(session.edit(0, "ab", random_stream=4))

    assert first != second
    assert 4 == session.turns[0].random_stream
    require_calls(session, generator(sampler=Sample(seed=1)))


@pytest.mark.parametrize("held", [True, False])
def test_breaking_off_keeps_what_was_read(held: bool) -> None:
    """When the stream is dropped, or at the next call where it is still held."""
    session = Session(generator())
    whole = hear(session.branch().say("ab"))
    stream = session.say("ab")
    taken = [next(stream), next(stream)]
    assert () == session.turns

    if not held:
        del stream
        gc.collect()
        assert 1 == len(session.turns)
    hear(session.say("cd"))

    assert [token for event in taken for token in event.ids] == session.turns[0].ids == whole[:2]
    assert session.turns[0].finish_reason is None
    assert 2 == len(session.turns)
    if held:
        assert [] == list(stream)


def test_a_stream_that_was_not_read_is_nothing() -> None:
    """The conversation is as before, also where a turn was to be replaced."""
    session = Session(generator())
    hear(session.say("ab"))
    before = session.turns
    unread = session.edit(0, "cd")
    session.say("ef")

    assert before == session.turns
    assert [] == list(unread)
    session.rewind()
    assert () == session.turns


def test_reading_the_conversation_while_an_answer_streams() -> None:
    """It is the one before, and the stream goes on."""
    session = Session(generator())
    seen = [(len(session.turns), session.messages, len(session.ids)) for _ in session.say("ab")]

    assert {0} == {turns for turns, *_ in seen}
    assert 1 == len(session.turns)


class FailsError(Exception):
    """Raised by a part."""


def test_an_exception_leaves_the_conversation() -> None:
    """As it was, and the turn can be repeated."""
    fails = True

    def processor(logits: Tensor, history: History) -> Tensor:
        if fails and int(history.length.max()) > int(history.prompt[0]) + 1:
            raise FailsError
        return logits

    session = Session(generator(processors=processor))
    with pytest.raises(FailsError):
        hear(session.say("ab"))
    assert () == session.turns

    fails = False
    hear(session.say("ab"))
    require_calls(session, generator())


def test_a_full_conversation_is_refused_before_anything_changes() -> None:
    """With the numbers; after a rewind there is room."""
    session = Session(generator(scripted(max_length=40)))
    hear(session.say("ab"))
    hear(session.say("ab"))
    before = session.turns

    with pytest.raises(
        SessionFullError, match=r"at most 40 tokens, .*: after 2 turns this one makes it \d+\. Rewind"
    ):
        session.say("abef" * 4)
    with pytest.raises(SessionFullError, match="after 0 turns this one makes it"):
        session.edit(0, "h" * 60)
    assert before == session.turns

    session.rewind()
    hear(session.say("a"))
    assert 2 == len(session.turns)


def test_a_turn_may_take_the_last_position() -> None:
    """And none beyond it."""
    session = Session(generator())
    hear(session.say("ab"))
    hear(session.say("cd"))
    most = len(session.turns[1].prompt)
    exact, short = (Session(generator(scripted(max_length=length))) for length in (most, most - 1))

    for each in (exact, short):
        hear(each.say("ab"))
    hear(exact.say("cd"))

    assert session.turns[1].ids[:1] == exact.turns[1].ids
    with pytest.raises(SessionFullError, match=f"at most {most - 1} tokens"):
        short.say("cd")


def test_an_answer_may_fill_the_cache() -> None:
    """It ends there, and the next turn is refused."""
    session = Session(generator(scripted(max_length=12), stop=MaxNewTokens(99), end_of_sequence=None))
    hear(session.say("ab"))

    assert "max_length" == session.turns[0].finish_reason
    assert 13 == len(session.ids)
    with pytest.raises(SessionFullError):
        session.say("ab")


@pytest.mark.parametrize(
    ("message", "error", "match"),
    [
        (7, TypeError, "'message' must be a text, or a list of messages"),
        ([], TypeError, "'message' must be a text"),
        ([{"role": "assistant", "content": "a"}], ValueError, "must not be the assistant's"),
        ("refused", ValueError, "refuses the messages"),
        ([{"role": "user", "content": "ab"}], None, ""),
        ([{"role": "tool", "content": "a"}, {"role": "user", "content": "b"}], None, ""),
    ],
)
def test_messages(message: Any, error: type[Exception] | None, match: str) -> None:
    """A text or messages; others change nothing."""
    session = Session(generator(template=REFUSING))
    if error is None:
        hear(session.say(message))
        assert list(message) == session.messages[:-1]
        return
    with pytest.raises(error, match=match):
        session.say(message)
    assert () == session.turns


def test_refused_sessions() -> None:
    """What a session needs, and the value that was given."""
    decoder = scripted()
    good = generator(decoder)
    with pytest.raises(TypeError, match="a chat is encoded by a tokenizer"):
        Session(Generator(decoder))
    with pytest.raises(ValueError, match="chat_template is None"):
        Session(Generator(decoder, tokenizer=chat_tokenizer(None)))
    with pytest.raises(TypeError, match="must have a Generator or a Batcher"):
        Session(decoder)  # type: ignore[arg-type]  # the test
    with pytest.raises(TypeError, match=r"'parts' must be a generator's \.parts with a batcher: got None"):
        Session(Batcher(decoder))
    with pytest.raises(TypeError, match="'parts' must be None with a generator"):
        Session(good, parts=good.parts)
    with pytest.raises(TypeError, match=r"'system' must be a text: got "):
        Session(good, system=3)  # type: ignore[arg-type]  # the test
    with pytest.raises(TypeError, match="must be whole numbers"):
        Session(good, random_stream="x")  # type: ignore[arg-type]  # the test
    session = Session(good)
    with pytest.raises(TypeError, match="must be whole numbers"):
        session.random_stream = None  # type: ignore[assignment]  # the test
    with pytest.raises(attrs.exceptions.FrozenAttributeError):
        session.system = "a"


def test_refused_turns() -> None:
    """Indexes of no turn."""
    session = Session(generator())
    hear(session.say("ab"))
    for turn in (1, -2):
        with pytest.raises(IndexError, match="one of 1 turns"):
            session.edit(turn, "ab")
        with pytest.raises(IndexError, match="one of 1 turns"):
            session.rewind(turn)
    with pytest.raises(TypeError, match="'turn' must be the index"):
        session.rewind("0")  # type: ignore[arg-type]  # the test
    assert 1 == len(session.turns)


def test_an_end_of_sequence_that_is_shown_is_not_in_the_message() -> None:
    """The template writes it itself."""
    talk = generator(skip_special_tokens=False, stop=MaxNewTokens(60))
    session = Session(talk)
    for text in ("ab", "cd", "ef", "gh"):
        hear(session.say(text))
        assert 0 == session.turns[-1].rewritten

    ended = [turn for turn in session.turns if turn.finish_reason == "end_of_sequence"]
    assert ended
    assert not any(turn.text.endswith("<|end|>") for turn in ended)


def test_the_echo_of_a_prompt_is_not_in_the_message() -> None:
    """Only in the events."""
    session = Session(generator(echo_prompt=True))
    shown = "".join(event.text or "" for event in session.say("ab"))

    assert shown.endswith(session.turns[0].text)
    assert len(shown) > len(session.turns[0].text)


def test_repr() -> None:
    """Turns and tokens."""
    session = Session(generator())
    hear(session.say("ab"))

    assert f"<Session: 1 turns, {len(session.ids)} tokens>" == repr(session)


def test_saved_sessions_go_on(tmp_path: Path) -> None:
    """With the same ids, and the same answers as the session that was saved."""
    session = Session(generator(template=FORGETFUL, sampler=Sample(seed=2)), system="abc", random_stream=3)
    for text in ("ab", "ch", "de"):
        hear(session.say(text))
    session.save(tmp_path / "session.json")
    loaded = Session.load(tmp_path / "session.json", generator(template=FORGETFUL, sampler=Sample(seed=2)))

    assert list(map(visible, session.turns)) == list(map(visible, loaded.turns))
    assert (session.system, session.random_stream) == (loaded.system, loaded.random_stream)
    assert session.messages == loaded.messages
    for each in (session, loaded):
        hear(each.say("ab"))
        each.rewind(1)
        hear(each.say("hh"))
    assert list(map(visible, session.turns)) == list(map(visible, loaded.turns))


def visible(turn: Turn) -> tuple[Any, ...]:
    """All of a turn but its statistics."""
    fields = turn.messages, turn.segments, turn.answer, turn.text
    return (*fields, turn.finish_reason, turn.rewritten, turn.random_stream)
