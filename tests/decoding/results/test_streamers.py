"""Every streamer hears of everything, and of the end whatever happens."""

import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    PreTrainedTokenizerFast,
    TextIteratorStreamer as HuggingFaceTextIterator,
    TextStreamer as HuggingFaceTextStreamer,
)

from decodekit.decoding.protocols import Finish
from decodekit.decoding.results.events import Event
from decodekit.decoding.results.streamers import ClosedError, forward, report_failure

EVENTS = [Event(0, (1,), "b"), Event(0, (2, 0), "ca"), Event(0, (3,), " ", Finish("max_new_tokens"))]


@attrs.define
class Ours:
    """Records its calls."""

    told: list[Any] = attrs.field(factory=list)

    def put_event(self, event: Event) -> None:
        self.told.append(event)

    def end(self) -> None:
        self.told.append("end")


class Failing(Ours):
    """Wants to know of errors as well."""

    def fail(self, error: BaseException) -> None:
        self.told.append(error)


@attrs.define
class HuggingFace:
    """Records its calls."""

    told: list[Any] = attrs.field(factory=list)

    def put(self, value: torch.Tensor) -> None:
        assert value.dtype == torch.int64
        self.told.append(value.tolist())

    def end(self) -> None:
        self.told.append("end")


@attrs.define
class Source:
    """Events that may raise, and that know whether they were closed."""

    error: BaseException | None = None
    closed: bool = False

    def __call__(self) -> Iterator[Event]:
        try:
            yield from EVENTS
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


def tokenizer() -> Any:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2, " ": 3}, unk_token="a"))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


class TestForward:
    """Between the events, a streamer and the consumer."""

    def test_events_pass_unchanged(self) -> None:
        """To the streamer and to the consumer."""
        streamer = Ours()

        assert list(forward(Source()(), streamer, [[7], [8]])) == EVENTS
        assert streamer.told == [*EVENTS, "end"]

    def test_the_streamer_is_told_first(self) -> None:
        """When the consumer has an event, the streamer has had it."""
        streamer = Ours()
        for event in forward(Source()(), streamer, [[7]]):
            assert streamer.told[-1] is event

    def test_who_wants_the_prompts_gets_them_first(self) -> None:
        """Copies of its own, before any event."""

        class Curious(Ours):
            def begin(self, prompts: list[list[int]]) -> None:
                self.told.append(prompts)
                prompts[0].clear()

        streamer, prompts = Curious(), [[7, 8], [9]]

        events = list(forward(iter(EVENTS), streamer, prompts))

        assert [[[], [9]], *events, "end"] == streamer.told
        assert [[7, 8], [9]] == prompts

    def test_hugging_face_streamers_get_the_prompt_and_then_ids(self) -> None:
        """``[1, length]``, then ``[n]`` for each event that has any."""
        streamer = HuggingFace()
        events = iter([*EVENTS, Event(0, (), "late")])

        assert len(list(forward(events, streamer, [[7, 8, 9]]))) == 4
        assert streamer.told == [[[7, 8, 9]], [1], [2, 0], [3], "end"]

    def test_hugging_face_streamers_take_one_prompt(self) -> None:
        """More are refused before anything is decoded."""
        source = Source()
        with pytest.raises(ValueError, match=r"takes one prompt: 2\. .*event\.row"):
            forward(source(), HuggingFace(), [[7], [8]])

    @pytest.mark.parametrize("streamer", [object(), print, [], HuggingFace, None])
    def test_anything_else_is_refused(self, streamer: Any) -> None:
        """The message says what a streamer is. Nothing is decoded or reported."""
        if streamer is HuggingFace:
            streamer = type("OnlyPut", (), {"put": lambda self, ids: None})()
        with pytest.raises(TypeError, match=r"put_event\(event\) and end\(\), or put\(ids\) and end\(\)"):
            forward(Source()(), streamer, [[7]])

    @pytest.mark.parametrize("error", [RuntimeError("device"), KeyboardInterrupt()], ids=repr)
    def test_an_error_reaches_streamer_and_consumer(self, error: BaseException) -> None:
        """``fail`` where there is one, else ``end``; never both."""
        for streamer, last in [(Failing(), error), (Ours(), "end"), (HuggingFace(), "end")]:
            with pytest.raises(type(error)) as caught:
                list(forward(Source(error)(), streamer, [[7]]))

            assert caught.value is error
            assert streamer.told[-1] is last
            assert streamer.told.count("end") == (last == "end")

    def test_a_streamer_that_raises_stops_the_generation(self) -> None:
        """The events are closed and the streamer is notified."""

        class Full(Failing):
            def put_event(self, event: Event) -> None:
                raise OSError("disk full")

        source, streamer = Source(), Full()
        inner = source()
        with pytest.raises(OSError, match="disk full"):
            list(forward(inner, streamer, [[7]]))

        assert source.closed
        assert [repr(told) for told in streamer.told] == ["OSError('disk full')"]

    def test_an_abandoned_streamer_stops_quietly(self) -> None:
        """It gets the events so far, and then the end."""

        class Left(Failing):
            def put_event(self, event: Event) -> None:
                if event is EVENTS[1]:
                    raise ClosedError
                super().put_event(event)

        source, streamer = Source(), Left()
        inner = source()

        assert EVENTS[:1] == list(forward(inner, streamer, [[7]]))
        assert source.closed
        assert [EVENTS[0], "end"] == streamer.told

    def test_an_abandoned_streamer_may_say_so_at_once(self) -> None:
        """Then nothing is decoded."""

        class Left(Failing):
            def begin(self, prompts: list[list[int]]) -> None:
                raise ClosedError

        streamer = Left()

        assert [] == list(forward(Source(KeyError("decoded"))(), streamer, [[7]]))
        assert ["end"] == streamer.told

    def test_a_part_cannot_stop_quietly(self) -> None:
        """Whatever it raises is an error: the generation is not complete."""
        error, streamer = ClosedError("of a generation inside this one"), Failing()
        with pytest.raises(ClosedError):
            list(forward(Source(error)(), streamer, [[7]]))

        assert [*EVENTS, error] == streamer.told

    def test_closing_closes_the_events_and_ends_the_streamer(self) -> None:
        """A consumer that leaves early is no error."""
        for streamer in (Ours(), Failing(), HuggingFace()):
            source = Source()
            inner = source()  # kept, so that nothing but closing closes it
            events = forward(inner, streamer, [[7]])
            next(events)
            events.close()  # type: ignore[attr-defined]

            assert source.closed
            assert streamer.told[-1] == "end"

    def test_hugging_faces_text_streamer_prints(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Prompt, text and newline."""
        list(forward(Source()(), HuggingFaceTextStreamer(tokenizer()), [[0, 3]]))

        assert capsys.readouterr().out == "a bca \n"

    def test_hugging_faces_text_iterator_iterates(self) -> None:
        """In a thread, as it is used with Hugging Face's generate."""
        streamer = HuggingFaceTextIterator(tokenizer(), skip_prompt=True, timeout=10)
        thread = threading.Thread(target=list, args=[forward(Source()(), streamer, [[0, 3]])])
        thread.start()
        pieces = list(streamer)
        thread.join(10)

        assert not thread.is_alive()
        assert "".join(pieces) == "bca "


class TestReportFailure:
    """Errors before the first event."""

    @pytest.mark.parametrize(
        ("streamer", "last"), [(Failing(), "error"), (Ours(), "end"), (HuggingFace(), "end")]
    )
    def test_a_streamer_hears_of_it_once(self, streamer: Any, last: str) -> None:
        """``fail`` where there is one, else ``end``."""
        error = RuntimeError("too long")
        report_failure(streamer, error)

        assert [error if last == "error" else last] == streamer.told

    @pytest.mark.parametrize("streamer", [Ours(), Failing(), HuggingFace()])
    def test_one_in_use_hears_nothing(self, streamer: Any) -> None:
        """It would take the failure for that of the generation which it serves."""
        passed = forward(iter(EVENTS), streamer, [[1]])
        next(passed)
        before = list(streamer.told)
        report_failure(streamer, ValueError("another"))
        assert before == streamer.told
        passed.close()
        report_failure(streamer, ValueError("another"))
        assert len(before) + 2 == len(streamer.told)

    def test_one_that_closes_does_not_hide_the_error(self) -> None:
        """Neither before nor while it serves."""

        class Closing(Ours):
            def end(self) -> None:
                raise ClosedError

        class HuggingFaceClosing(HuggingFace):
            def end(self) -> None:
                raise ClosedError

        def failing() -> Iterator[Event]:
            yield EVENTS[0]
            raise ValueError("of the generation")

        for streamer in (Closing(), HuggingFaceClosing()):
            report_failure(streamer, ValueError("another"))
            with pytest.raises(ValueError, match="of the generation"):
                list(forward(failing(), streamer, [[1]]))

    @pytest.mark.parametrize("streamer", [None, 3, print, Ours, Failing, HuggingFace])
    def test_what_is_no_streamer_is_told_nothing(self, streamer: Any) -> None:
        """A class neither, so that the error is that it is none."""
        report_failure(streamer, RuntimeError("no streamer"))
