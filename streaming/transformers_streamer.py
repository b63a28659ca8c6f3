"""Streamers of decodekit for ``generate`` of transformers."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

import attrs
from torch import Tensor

from ..decoding.protocols import Finish
from ..decoding.results.events import Event
from ..decoding.results.row_text import RowText
from ..decoding.results.streamers import ClosedError, Listener, listener, takes_events
from ..decoding.text.detokenizer import Detokenizer
from ..decoding.validation import as_several, is_whole

_STOPPED = Finish("stopped")
"""``generate`` gives no reason for returning."""


def _ids_or_none(value: Any) -> Any:
    if value is None:
        return None
    ids = as_several(value)
    if not all(is_whole(i) for i in ids):
        raise TypeError(f"'eos_token_id' must be a token id, several, or None: got {value!r}")
    return tuple(int(i) for i in ids)


def _takes_events(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if not takes_events(value):
        raise TypeError(f"'{attribute.name}' must have put_event(event) and end(): got {value!r}")


@attrs.define(eq=False)
class _Progress:
    """One row of a running ``generate``."""

    text: RowText | None
    ended: bool = False


@attrs.define(eq=False)
class TransformersStreamer:
    """
    Adapt a streamer of decodekit to ``generate`` of transformers.

    ::

        model.generate(**inputs, streamer=TransformersStreamer(BatchDisplay(), tokenizer))

    Unlike Hugging Face's own streamers it takes batches; it also takes the several tokens at a time
    of assisted decoding. A row ends with its end-of-sequence token; the padding after it is
    ignored. Rows without one end with the reason ``"stopped"``, since ``generate`` gives none. If
    another stopping criterion ends one row before the others, the padding after it is taken for
    tokens, since ``generate`` does not report that either.

    ``generate`` does not notify a streamer of an exception. Use this one as a context manager::

        with TransformersStreamer(texts, tokenizer) as streamer:
            model.generate(**inputs, streamer=streamer)

    An exception of the streamer propagates through ``generate`` to its caller, also
    :class:`~decodekit.decoding.results.streamers.ClosedError`, which is the only way to stop it.

    Args:
        streamer: A streamer of decodekit. It gets the prompts of ``generate``, padding included.

        tokenizer: For the events' text and the end-of-sequence token; without one, events have no
            text.

        eos_token_id: End-of-sequence token or tokens, as in ``model.generation_config``; None for
            the tokenizer's, ``()`` for none.

        skip_special_tokens: Whether to omit special tokens from the text.
    """

    streamer: Any = attrs.field(validator=_takes_events)
    tokenizer: Any = attrs.field(default=None, repr=False)
    eos_token_id: tuple[int, ...] | None = attrs.field(default=None, converter=_ids_or_none)
    skip_special_tokens: bool = attrs.field(default=True, validator=attrs.validators.instance_of(bool))
    # None while there is no generation.
    _listener: Listener | None = attrs.field(init=False, repr=False, default=None)
    _rows: list[_Progress] = attrs.field(init=False, repr=False, factory=list)
    _ended: bool = attrs.field(init=False, repr=False, default=False)
    _eos: tuple[int, ...] = attrs.field(init=False, repr=False)

    @_eos.default
    def _default_eos(self) -> tuple[int, ...]:
        if self.eos_token_id is not None:
            return self.eos_token_id
        return _ids_or_none(getattr(self.tokenizer, "eos_token_id", None)) or ()

    def put(self, value: Tensor) -> None:
        """
        Take prompts or new tokens from ``generate``.

        Args:
            value: First the prompts, ``[batch, length]``, then new ids, ``[batch]`` or ``[batch, n]``.
        """
        if self._listener is None:
            self._begin((value if value.dim() == 2 else value[None]).tolist())
        else:
            self._notify(lambda: self._put_rows(value.reshape(len(self._rows), -1).tolist()))

    def end(self) -> None:
        """End the remaining rows and the streamer."""
        self._notify(self._end_rows)
        if not self._ended:
            self._reset().end()

    def fail(self, error: BaseException) -> None:
        """Pass an *error* of ``generate`` to the streamer, unless it has ended."""
        if not self._ended:
            self._reset().fail(error)

    def __enter__(self) -> "TransformersStreamer":
        self._ended = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)

    def _begin(self, prompts: list[list[int]]) -> None:
        one = self._listener = listener(self.streamer, prompts)
        self._rows = [_Progress(self._text()) for _ in prompts]
        self._ended = False
        self._notify(one.begin)

    def _text(self) -> RowText | None:
        if self.tokenizer is None:
            return None
        return RowText(Detokenizer(self.tokenizer, self.skip_special_tokens))

    def _put_rows(self, rows: list[list[int]]) -> None:
        for number, ids in enumerate(rows):
            if self._rows[number].ended:
                continue
            end = next((place for place, token in enumerate(ids) if token in self._eos), None)
            if end is None:
                self._put_event(number, tuple(ids), None)
            else:
                self._put_event(number, tuple(ids[: end + 1]), Finish("end_of_sequence", ids[end]))

    def _end_rows(self) -> None:
        for number, row in enumerate(self._rows):
            if not row.ended:
                self._put_event(number, (), _STOPPED)

    def _put_event(self, number: int, ids: tuple[int, ...], finish: Finish | None) -> None:
        row = self._rows[number]
        row.ended = finish is not None
        text = None if row.text is None else row.text.push(ids, finish)
        self.streamer.put_event(Event(number, ids, text, finish))

    def _notify(self, action: Callable[[], None]) -> None:
        try:
            action()
        except ClosedError:
            self._reset().end()
            raise
        except BaseException as error:
            self.fail(error)
            raise

    def _reset(self) -> Listener:
        """Reset the generation's state; returns the listener to notify of the end."""
        one = self._listener or listener(self.streamer, [[]])
        self._listener, self._rows, self._ended = None, [], True
        return one
