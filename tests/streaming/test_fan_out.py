"""Several streamers as one."""

import io
import threading
from typing import Any

import pytest
import torch
from transformers import TextStreamer as HuggingFaceTextStreamer

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.decoding.results.streamers import forward
from decodekit.streaming import BatchDisplay, Callback, ClosedError, FanOut, TextIterator
from decodekit.testing import ScriptedDecoder

from .scripted_events import TEXTS, Recorder, Source, events_of, prompts_of, tokenizer

EVENTS = events_of(TEXTS, 3)
PROMPTS = prompts_of(TEXTS)


class TestFanOut:
    """Several streamers as one."""

    def test_every_streamer_gets_every_event(self) -> None:
        """In order: the prompts, the events, the end."""
        some = [Recorder() for _ in range(3)]

        assert EVENTS == list(forward(iter(EVENTS), FanOut(*some), PROMPTS))
        for one in some:
            assert [PROMPTS, *EVENTS, "end"] == one.told

    def test_a_failing_generation_fails_every_streamer(self) -> None:
        """Once."""
        some, error = [Recorder(), Recorder()], RuntimeError("device")
        with pytest.raises(RuntimeError):
            list(forward(Source(EVENTS, error)(), FanOut(*some), PROMPTS))

        for one in some:
            assert EVENTS == one.events
            assert [("fail", error)] == one.last_words

    @pytest.mark.parametrize("at", [0, 1, 5])
    def test_who_closes_is_dropped_alone(self, at: int) -> None:
        """It is ended at once; the others continue."""
        leaving, staying = Recorder(ClosedError(), at), Recorder()

        assert EVENTS == list(forward(iter(EVENTS), FanOut(leaving, staying), PROMPTS))
        assert [PROMPTS, *EVENTS[: at + 1], "end"] == leaving.told
        assert [PROMPTS, *EVENTS, "end"] == staying.told

    def test_who_closes_may_say_so_at_its_end_too(self) -> None:
        """Its last message cannot be sent either."""

        class Gone(Recorder):
            def end(self) -> None:
                super().end()
                raise ClosedError

        leaving, staying = Gone(ClosedError(), 1), Recorder()

        assert EVENTS == list(forward(iter(EVENTS), FanOut(leaving, staying), PROMPTS))
        assert [PROMPTS, *EVENTS, "end"] == staying.told

    def test_when_all_are_closed_the_generation_ends(self) -> None:
        """Quietly, at the event that the last of them refused."""
        some, source = [Recorder(ClosedError(), at) for at in (2, 0, 4)], Source(EVENTS)

        assert EVENTS[:4] == list(forward(source(), FanOut(*some), PROMPTS))
        assert source.closed
        for one in some:
            assert ["end"] == one.last_words

    @pytest.mark.parametrize("place", [0, 1, 2])
    @pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=repr)
    def test_another_error_fails_every_streamer(self, place: int, error: BaseException) -> None:
        """Including the one that raised; the error propagates."""
        some = [Recorder(error if i == place else None, 3) for i in range(3)]
        with pytest.raises(type(error)) as caught:
            list(forward(iter(EVENTS), FanOut(*some), PROMPTS))

        assert error is caught.value
        for i, one in enumerate(some):
            assert [("fail", error)] == one.last_words
            assert len(one.events) == (4 if i <= place else 3)

    def test_every_streamer_fails_even_if_another_raises_meanwhile(self) -> None:
        """The first error propagates; later ones are added to it as notes."""

        class Bad(Recorder):
            def fail(self, error: BaseException) -> None:
                super().fail(error)
                raise LookupError("cannot even fail")

            def end(self) -> None:
                super().end()
                raise LookupError("cannot even end")

        first, bad, last = Recorder(OSError("full"), 0), Bad(), Recorder()
        with pytest.raises(OSError, match="full") as caught:
            list(forward(iter(EVENTS), FanOut(first, bad, last), PROMPTS))

        assert [
            "a streamer that was told of this raised LookupError('cannot even fail')"
        ] == caught.value.__notes__
        assert 1 == len(last.last_words) == len(bad.last_words)

        bad, last = Bad(), Recorder()
        with pytest.raises(LookupError, match="cannot even end"):
            list(forward(iter(EVENTS), FanOut(bad, last), PROMPTS))

        assert ["end"] == last.last_words

    @pytest.mark.parametrize("without_begin", [True, False])
    def test_without_a_driver(self, without_begin: bool) -> None:
        """Called by hand, with or without prompts; and a second time."""
        one, closing = Recorder(), Recorder(ClosedError())
        both = FanOut(one, closing)
        for _ in range(2):
            one.told.clear()
            closing.told.clear()
            if not without_begin:
                both.begin(PROMPTS)
            for event in EVENTS:
                both.put_event(event)
            both.end()

            assert EVENTS == one.events
            assert ["end"] == one.last_words == closing.last_words
            assert 1 == len(closing.events)

    def test_a_generation_that_never_began(self) -> None:
        """A refused prompt: the readers of all streamers get the error, each time."""
        torch.manual_seed(0)
        generator = Generator(ScriptedDecoder(torch.randn(31, 11)), stop=MaxNewTokens(2))
        one = Recorder()
        both = FanOut(FanOut(one), Recorder())
        for _ in range(2):
            for bad in (99, 100):
                one.told.clear()
                with pytest.raises(ValueError, match="vocabulary"):
                    generator([bad], streamer=both)

                assert ["fail"] == [word for word, _ in one.last_words]

            one.told.clear()
            generator([1], streamer=both)

            assert ["end"] == one.last_words

    def test_readers_in_threads(self) -> None:
        """One leaves early, which does not block the others."""
        text = TEXTS[0]
        early, late = TextIterator(timeout=10, capacity=1), TextIterator(timeout=10, capacity=1)
        streamer = FanOut(early, late)
        thread = threading.Thread(target=list, args=[forward(iter(events_of([text], 2)), streamer, [[7]])])
        thread.start()
        first = next(early)
        early.close()

        assert text[:2] == first
        assert text == "".join(late)
        thread.join(10)

        assert not thread.is_alive()

    def test_hugging_faces_streamers_are_among_them(self, capsys: pytest.CaptureFixture[str]) -> None:
        """They get the prompt first; several prompts are refused before anything is decoded."""
        file, text = io.StringIO(), TEXTS[0]
        both = FanOut(HuggingFaceTextStreamer(tokenizer()), BatchDisplay(file))
        prompt = tokenizer()("Say: ", add_special_tokens=False)["input_ids"]
        list(forward(iter(events_of([text], 2)), both, [prompt]))

        assert f"Say: {text}\n" == capsys.readouterr().out
        assert f"[0] {text}\n" == file.getvalue()

        recorder = Recorder()
        with pytest.raises(ValueError, match="takes one prompt: 5"):
            list(forward(iter(EVENTS), FanOut(recorder, HuggingFaceTextStreamer(tokenizer())), PROMPTS))

        assert ["fail"] == [word for word, _ in recorder.last_words]

    @pytest.mark.parametrize("bad", [print, Callback, None, 3])
    def test_what_is_no_streamer_is_refused(self, bad: Any) -> None:
        """At construction; no streamers at all as well."""
        with pytest.raises(TypeError, match="'streamers' must each have put_event"):
            FanOut(Recorder(), bad)
        with pytest.raises(ValueError, match="'streamers' must be at least one"):
            FanOut()
