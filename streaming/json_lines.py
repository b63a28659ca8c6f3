"""JSON Lines log of events."""

import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TextIO

import attrs

from ..decoding.results.events import Event
from .encodable import encodable


def _a_file(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if not isinstance(value, str | os.PathLike) and not callable(getattr(value, "write", None)):
        raise TypeError(f"'{attribute.name}' must be a path or an open text file: got {value!r}")


@attrs.define(eq=False)
class JsonLines:
    """
    Log every event as one line of JSON.

    Each line has ``time``, seconds on a monotonic clock; only differences are meaningful. One
    generation writes::

        {"time": 51.0, "prompt_lengths": [3]}
        {"time": 51.2, "row": 0, "ids": [5, 6], "text": "Hello"}
        {"time": 51.3, "row": 0, "ids": [2], "text": "", "finish": {"reason": "max_new_tokens"}}
        {"time": 51.3, "end": true}

    and, instead of the last line, one that raised::

        {"time": 51.3, "error": {"type": "RuntimeError", "message": "out of device memory"}}

    Every line is written in one call and flushed. One log serves consecutive generations;
    concurrent ones need one each, which may append to the same path.

    Args:
        file: A path, opened for appending during each generation, or an open text file, which
            stays open.

        fields: Added to each line, to identify the generation: ``{"request": 17}``.

        clock: Returns the time in seconds.
    """

    file: str | os.PathLike[str] | TextIO = attrs.field(validator=_a_file)
    fields: Mapping[str, Any] = attrs.field(factory=dict)
    clock: Callable[[], float] = attrs.field(default=time.monotonic, repr=False)
    _open: TextIO | None = attrs.field(init=False, repr=False, default=None)

    def begin(self, prompts: list[list[int]]) -> None:
        """Log the prompts' lengths."""
        self._write({"prompt_lengths": [len(prompt) for prompt in prompts]})

    def put_event(self, event: Event) -> None:
        """Log an event."""
        self._write(event.as_dict())

    def end(self) -> None:
        """Log the end."""
        self._write_last({"end": True})

    def fail(self, error: BaseException) -> None:
        """Log the generation's exception."""
        self._write_last({"error": {"type": type(error).__name__, "message": str(error)}})

    def _write(self, content: dict[str, Any]) -> None:
        # A finish may hold any object of the user's stop condition.
        to_json = partial(json.dumps, {"time": self.clock(), **self.fields, **content}, default=repr)
        file, line = self._opened(), to_json(ensure_ascii=False)
        # What the file cannot encode must not stop a generation.
        file.write((line if encodable(line, file) == line else to_json()) + "\n")
        file.flush()

    def _write_last(self, content: dict[str, Any]) -> None:
        try:
            self._write(content)
        finally:
            file, self._open = self._open, None
            if file is not None and file is not self.file:
                file.close()

    def _opened(self) -> TextIO:
        if self._open is None:
            if isinstance(self.file, str | os.PathLike):
                self._open = open(self.file, "a", encoding="utf-8", newline="\n")  # noqa: SIM115  # till the end
            else:
                self._open = self.file
        return self._open
