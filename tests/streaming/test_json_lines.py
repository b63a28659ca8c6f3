"""JSON Lines log of events."""

import io
import itertools
import json
import pathlib
import threading
from typing import Any

import pytest

from decodekit.decoding.protocols import Finish
from decodekit.decoding.results.events import Event
from decodekit.decoding.results.logprobs import TokenLogprob
from decodekit.decoding.results.streamers import forward
from decodekit.streaming import JsonLines

from .scripted_events import TEXTS, Source, events_of, prompts_of


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


class TestJsonLines:
    """One event a line."""

    @pytest.mark.parametrize("per_event", range(1, 9))
    def test_every_event_is_a_line(self, per_event: int) -> None:
        """Between one with the prompts and one for the end, each with its time."""
        file, ticks = io.StringIO(), itertools.count()
        events = events_of(TEXTS, per_event)
        list(forward(iter(events), JsonLines(file, clock=lambda: next(ticks)), prompts_of(TEXTS)))
        lines = lines_of(file.getvalue())

        assert list(range(len(events) + 2)) == [line.pop("time") for line in lines]
        assert [
            {"prompt_lengths": [2] * len(TEXTS)},
            *(json.loads(json.dumps(event.as_dict())) for event in events),
            {"end": True},
        ] == lines

    def test_a_line_is_one_line(self) -> None:
        """Whatever the text; and nothing that is no JSON."""
        file = io.StringIO()
        text = '\u2028 \x85 \r\n \0 "é日'
        token = TokenLogprob(1, -float("inf"), 1, ((1, -float("inf")),))
        JsonLines(file).put_event(Event(0, (1,), text, Finish("mine", {7}), (token,)))
        raw = file.getvalue()

        assert 1 == raw.count("\n")
        assert "é日" in raw
        assert "Infinity" not in raw
        line = json.loads(raw)
        assert text == line["text"]
        assert "{7}" == line["finish"]["matched"]

    def test_a_file_of_another_encoding_gets_every_character(self) -> None:
        """As JSON's escapes, so that the generation goes on."""
        raw = io.BytesIO()
        file = io.TextIOWrapper(raw, encoding="ascii")
        JsonLines(file).put_event(Event(0, (1,), "é→"))

        assert "é→" == json.loads(raw.getvalue())["text"]

    def test_a_failure_is_the_last_line(self) -> None:
        """What was raised, without the traceback."""
        file = io.StringIO()
        with pytest.raises(RuntimeError):
            list(
                forward(Source(events_of(TEXTS, 2), RuntimeError("no memory"))(), JsonLines(file), [[1]] * 5)
            )

        last = lines_of(file.getvalue())[-1]
        assert {"type": "RuntimeError", "message": "no memory"} == last["error"]

    def test_a_path_is_appended_to(self, tmp_path: pathlib.Path) -> None:
        """One generation after another, by the same log or another; it is open only meanwhile."""
        path = tmp_path / "log.jsonl"
        log, events = JsonLines(path), events_of(TEXTS, 3)
        for streamer in (log, log, JsonLines(str(path))):
            list(forward(iter(events), streamer, prompts_of(TEXTS)))

            assert streamer._open is None  # a warning of an open file is an error here as well

        assert 3 * (len(events) + 2) == len(lines_of(path.read_text(encoding="utf-8")))

    def test_generations_at_the_same_time_share_a_path(self, tmp_path: pathlib.Path) -> None:
        """Each with its own log and its own fields; lines do not interleave."""
        path, events = tmp_path / "log.jsonl", events_of(TEXTS, 1)
        logs = [JsonLines(path, fields={"request": number}) for number in range(4)]
        threads = [
            threading.Thread(target=list, args=[forward(iter(events), log, prompts_of(TEXTS))])
            for log in logs
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        lines = lines_of(path.read_text(encoding="utf-8"))

        for number in range(4):
            own = [line for line in lines if line["request"] == number]
            assert [event.text for event in events] == [line["text"] for line in own if "row" in line]
            assert own[-1]["end"]

    def test_an_open_file_stays_open_and_is_flushed(self) -> None:
        """The caller owns it."""

        class Counting(io.StringIO):
            flushes = 0

            def flush(self) -> None:
                self.flushes += 1

        file = Counting()
        log = JsonLines(file)
        log.begin([[1]])
        log.end()

        assert not file.closed
        assert 2 == file.flushes

    def test_a_full_disk_stops_the_generation(self) -> None:
        """With the error of the disk."""

        class Full(io.StringIO):
            def write(self, text: str) -> int:
                if self.getvalue():
                    raise OSError("no space left on device")
                return super().write(text)

        source = Source(events_of(TEXTS, 2))
        with pytest.raises(OSError, match="no space left"):
            list(forward(source(), JsonLines(Full()), prompts_of(TEXTS)))

    def test_what_is_no_file_is_refused(self) -> None:
        """At construction."""
        with pytest.raises(TypeError, match="'file' must be a path or an open text file: got 3"):
            JsonLines(3)  # type: ignore[arg-type]
