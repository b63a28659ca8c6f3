"""Functions as streamers."""

import contextlib
import functools
from typing import Any

import pytest

from decodekit.decoding.results.events import Event
from decodekit.decoding.results.streamers import forward
from decodekit.streaming import Callback, ClosedError

from .scripted_events import TEXTS, Source, events_of, prompts_of


class TestCallback:
    """Called as things happen."""

    def test_each_function_hears_its_own(self) -> None:
        """Events, and then the end or the error."""
        for error in (None, RuntimeError("device")):
            heard: list[Any] = []
            on_end = functools.partial(heard.append, "end")
            streamer = Callback(heard.append, on_end=on_end, on_error=heard.append)
            events = events_of(TEXTS, 2)
            with contextlib.suppress(RuntimeError):
                list(forward(Source(events, error)(), streamer, prompts_of(TEXTS)))

            assert [*events, "end" if error is None else error] == heard

    def test_an_error_is_an_end_to_who_does_not_ask(self) -> None:
        """As for every streamer without ``fail``; and none need be heard of."""
        heard: list[str] = []
        Callback(print, on_end=lambda: heard.append("end")).fail(KeyError())
        Callback(print).fail(KeyError())
        Callback(print).end()

        assert ["end"] == heard

    def test_what_it_returns_is_not_looked_at(self) -> None:
        """A lambda returns something."""
        events = events_of(TEXTS, 3)

        assert events == list(forward(iter(events), Callback(lambda event: False), prompts_of(TEXTS)))

    def test_closing_is_quiet_and_errors_are_not(self) -> None:
        """The generation ends after the event at which it was raised."""

        def stop(event: Event) -> None:
            if event.row == 1:
                raise ClosedError

        events = events_of(TEXTS, 3)

        assert events[:1] == list(forward(iter(events), Callback(stop), prompts_of(TEXTS)))
        with pytest.raises(ZeroDivisionError):
            list(forward(iter(events), Callback(lambda event: 1 / 0), prompts_of(TEXTS)))

    @pytest.mark.parametrize("name", ["on_event", "on_end", "on_error"])
    def test_what_is_no_function_is_refused(self, name: str) -> None:
        """At construction."""
        with pytest.raises(TypeError, match=f"'{name}' must be a function: got 3"):
            Callback(**{"on_event": print, name: 3})
