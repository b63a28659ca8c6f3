"""The generator: a decoder and the parts around it."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import attrs
import torch
from attrs import validators

from . import noise
from .agreement import Agreement
from .choose import Choose
from .events import Event
from .generation import Generation, collect
from .greedy import Greedy
from .history import History
from .loop import Burst, Loop
from .prompts import as_rows
from .protocols import Decoder, Drafter, Processor, Selection, StopCondition, Verification
from .row_text import RowText
from .slots import Slots
from .statistics import Statistics
from .stopping import MaxNewTokens, begin
from .streamers import forward, report_failure
from .text import Detokenizer


@attrs.frozen(eq=False, kw_only=True)
class Generator:
    """
    Generates from prompts with a decoder and the parts around it.

    Every part may be any object of its protocol (:mod:`decodekit.decoding.protocols`). A row's
    text is a function of its prompt, its stream and the parts alone: neighbours, batch and
    drafter do not change it.
    """

    decoder: Decoder = attrs.field(kw_only=False)
    """What scores."""

    processors: Processor | None = None
    """A processor or a chain of them; None leaves the logits as they are."""

    selection: Selection = attrs.field(factory=Greedy)
    """What chooses from the processed logits."""

    stop: StopCondition = attrs.field(factory=lambda: MaxNewTokens(128))
    """Where a row ends; at the latest where the decoder has no position left."""

    drafter: Drafter | None = None
    """What guesses ahead; None for plain decoding."""

    num_draft_tokens: int = attrs.field(default=4, validator=[validators.instance_of(int), validators.ge(0)])
    """Guesses per round at most, k. The decoder has to score k + 1 columns."""

    verification: Verification = attrs.field(factory=Agreement)
    """What decides how much of a draft stands."""

    tokenizer: Any = attrs.field(default=None, repr=False)
    """Makes ids of strings, and text of ids."""

    skip_special_tokens: bool = True
    """Whether the text leaves special tokens out."""

    exact_width: bool = False
    """
    Whether every token goes through one program, the widest that scores all its columns.
    Then not even rounding can tell speculation from plain decoding. Prompts take longer.
    """

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot work together."""
        if not callable(getattr(self.decoder, "forward", None)) or not hasattr(self.decoder, "shape"):
            raise TypeError(f"'decoder' must have a shape and forward(ids, cache_pos): got {self.decoder!r}")
        for name in ("processors", "selection", "stop", "verification"):
            part = getattr(self, name)
            if not callable(part) and not (name == "processors" and part is None):
                raise TypeError(f"'{name}' must be callable: got {part!r}")
        if not hasattr(self.stop, "endings"):
            raise TypeError(f"'stop' must be a stop condition, with endings: got {self.stop!r}")
        if self.drafter is None:
            return
        if not callable(getattr(self.drafter, "propose", None)):
            raise TypeError(f"'drafter' must have propose(history, budget, choose): got {self.drafter!r}")
        shape = self.decoder.shape
        if self.num_draft_tokens + 1 > shape.scored_width:
            raise ValueError(
                f"'num_draft_tokens' must be at most {shape.scored_width - 1}, one less than the columns "
                f"that the decoder scores: got {self.num_draft_tokens}"
            )
        check_target = getattr(self.drafter, "check_target", None)
        if check_target is not None:
            check_target(shape)

    def __call__(
        self, prompts: Any, streams: Sequence[int] | None = None, streamer: Any = None
    ) -> Generation:
        """
        Generate until every row has ended.

        Args:
            prompts: One list of ids, a list of them, an integer array ``[batch, length]``
                (torch or numpy), or with a tokenizer a string or several. At most as many as
                the decoder has rows.

            streams: The rows' random streams, one number each; 0, 1, 2, ... if not given. Give
                a row the same one to get the same text from it alone or in a batch.

            streamer: Told of every event as it happens: an object with ``put_event`` and
                ``end``, or one of Hugging Face's with ``put`` and ``end``.

        Raises:
            TypeError: A prompt that is no ids, or a streamer that is none.

            ValueError: A prompt that is empty, too long or outside the vocabulary, or too many.
        """
        try:
            rows, statistics = as_rows(prompts, self.decoder.shape, self.tokenizer), Statistics()
            events = self._events(self._history(rows, streams), statistics)
        except Exception as error:
            # Somebody may be waiting at the streamer's other end.
            report_failure(streamer, error)
            raise
        if streamer is not None:
            events = forward(events, streamer, rows)
        return collect(events, rows, statistics)

    def stream(self, prompts: Any, streams: Sequence[int] | None = None) -> Iterator[Event]:
        """
        Generate event by event; arguments as in a call.

        Nothing runs ahead: the next round is decoded when the next event is asked for. Closing
        the iterator ends decoding, and the generator is ready for the next call.
        """
        rows = as_rows(prompts, self.decoder.shape, self.tokenizer)
        return self._events(self._history(rows, streams), Statistics())

    async def astream(self, prompts: Any, streams: Sequence[int] | None = None) -> AsyncIterator[Event]:
        """Generate event by event without blocking the event loop; arguments as in a call."""
        events, done = self.stream(prompts, streams), object()
        step: asyncio.Future[Any] | None = None
        try:
            while True:
                step = asyncio.ensure_future(asyncio.to_thread(next, events, done))
                # Shielded: a cancelled consumer must not leave a thread inside the decoder.
                event = await asyncio.shield(step)
                if event is done:
                    return
                yield event
        finally:
            if step is not None and not step.done():
                await asyncio.wait([step])
            events.close()  # type: ignore[attr-defined]  # a generator, as stream() makes it

    def _history(self, rows: list[list[int]], streams: Sequence[int] | None) -> History:
        numbers = list(range(len(rows))) if streams is None else [int(number) for number in streams]
        if len(numbers) != len(rows):
            raise ValueError(f"'streams' must be one number for each of the {len(rows)} rows: {streams!r}")
        # One more than there are positions: the last token need not be fed.
        ids = torch.zeros(len(rows), 1, self.decoder.shape.max_length + 1, dtype=torch.int64)
        for row, prompt in enumerate(rows):
            ids[row, 0, : len(prompt)] = torch.tensor(prompt)
        length = torch.tensor([len(prompt) for prompt in rows])
        # Only a selection that draws has a seed.
        seed = getattr(self.selection, "seed", 0)
        return History(ids, length[:, None], length, noise.streams(torch.tensor(numbers), seed))

    def _events(self, history: History, statistics: Statistics) -> Iterator[Event]:
        slots = Slots.of(self.decoder)
        if self.exact_width:
            slots.forget()  # what stands there may have come through another program
        loop = Loop(
            slots=slots,
            choose=Choose(self.processors, self.selection),
            stop=begin(self.stop),
            drafter=self.drafter,
            num_draft_tokens=self.num_draft_tokens,
            verification=self.verification,
            exact_width=self.exact_width,
            statistics=statistics,
        )
        texts = self._texts(len(history.length))
        for bursts in loop.run(history):
            yield from [_event(burst, texts) for burst in bursts]

    def _texts(self, rows: int) -> list[RowText] | None:
        if self.tokenizer is None:
            return None
        hidden = tuple(ending.matched for ending in self.stop.endings if ending.hide)
        return [RowText(Detokenizer(self.tokenizer, self.skip_special_tokens), hidden) for _ in range(rows)]


def _event(burst: Burst, texts: list[RowText] | None) -> Event:
    text = None if texts is None else texts[burst.row].push(burst.ids, burst.ending)
    return Event(burst.row, burst.ids, text, burst.ending)
