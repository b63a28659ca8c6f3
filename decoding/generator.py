"""The generator: a decoder and the parts around it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs
import torch
from attrs import validators
from torch import Tensor

from . import noise
from .agreement import Agreement
from .background import in_threads
from .burst import Burst
from .checks import refuse_foreign, require_decoder
from .choose import Choose
from .choosing import decoder_chooses
from .drafting import Drafting
from .events import AsyncEventStream, Event, EventStream
from .follows_logits import FollowsLogits, begin_selection
from .generation import Generation, collect
from .greedy import Greedy
from .history import History
from .logprobs import Logprobs, TokenLogprob
from .loop import Loop
from .prompts import as_rows
from .protocols import Decoder, Drafter, DraftLength, Processor, Selection, StopCondition, Verification
from .slots import Slots
from .statistics import Statistics
from .stopping import MaxNewTokens, begin, how_to_wrap, parts
from .streamers import forward, report_failure
from .validation import a_whole_number, as_whole, is_whole, stream_numbers

if TYPE_CHECKING:
    from .logprob_recorder import LogprobRecorder
    from .placement import Placement
    from .row_text import RowText


def a_draft_length(instance: Any, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Refuse what is neither a whole number >= 0 nor a :class:`~.protocols.DraftLength`."""
    if isinstance(value, type):
        raise TypeError(f"'{attribute.name}' must be an instance: got the class {value.__name__}")
    if callable(value) and hasattr(value, "most") and hasattr(value, "learn"):
        if not is_whole(value.most) or value.most < 0:
            raise ValueError(f"'{attribute.name}' must say a whole number >= 0 at most: got {value.most!r}")
        return
    a_whole_number(instance, attribute, value)
    validators.ge(0)(instance, attribute, value)


@attrs.frozen(eq=False, kw_only=True)
class Generator:
    """
    Generates from prompts with a decoder and the parts around it.

    Every part may be any object of its protocol (:mod:`decodekit.decoding.protocols`). A row's
    text is a function of its prompt, its stream and the parts alone: neighbours, batch and
    drafter do not change it. (With a verification that compares distributions the drafter and
    its lengths do, though not the text's distribution.)

    Threads may share a generator, and generators a decoder: they take turns by the round, and
    each says what it says alone (see :class:`~.slots.Slots`).
    """

    decoder: Decoder = attrs.field(kw_only=False)
    """What scores."""

    processors: Processor | None = None
    """A processor or a chain of them; None leaves the logits as they are."""

    selection: Selection | FollowsLogits = attrs.field(factory=Greedy)
    """What chooses from the processed logits."""

    stop: StopCondition = attrs.field(factory=lambda: MaxNewTokens(128))
    """Where a row ends; at the latest where the decoder has no position left."""

    drafter: Drafter | None = None
    """What guesses ahead; None for plain decoding."""

    num_draft_tokens: int | DraftLength = attrs.field(default=4, converter=as_whole, validator=a_draft_length)
    """
    How far ahead to guess in each round, k, or what decides it, such as
    :class:`~decodekit.speculation.AdaptiveLength`. The decoder has to score k + 1 columns.
    """

    verification: Verification = attrs.field(factory=Agreement)
    """What decides how much of a draft stands."""

    tokenizer: Any = attrs.field(default=None, repr=False)
    """Makes ids of strings, and text of ids."""

    skip_special_tokens: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """Whether the text leaves special tokens out."""

    echo_prompt: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """
    Whether the text begins with the prompt's: each row's first event carries it before its own.
    Then both are decoded as one, so that a space or a character between them is what it is.
    Stop strings do not look into the prompt: they read the new ids alone, so where the prompt
    ends within a character they may see another text than is shown.
    """

    exact_width: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """
    Whether every token goes through one program, the widest that scores all its columns.
    Then not even rounding tells speculation from plain decoding on a decoder, or a row beside
    others from the row beside idle ones. Prompts take longer.
    """

    record_gap: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """
    Whether to measure how close each choice came to falling otherwise; the smallest such gap is
    in the statistics. Where texts of two runs part that differ in rounding alone, it is less
    than twice the difference of the processed logits. It needs all of them, which takes time.
    """

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot work together."""
        for name in ("decoder", "processors", "selection", "stop", "verification", "drafter"):
            if isinstance(part := getattr(self, name), type):
                raise TypeError(f"'{name}' must be an instance: got the class {part.__name__}")
        require_decoder(self.decoder)
        for name in ("processors", "selection", "stop", "verification"):
            part = getattr(self, name)
            able = callable(part) or (name == "selection" and getattr(part, "follows_logits", False))
            if not able and not (name == "processors" and part is None):
                hint = " (join several with |)" if isinstance(part, list | tuple) else ""
                raise TypeError(f"'{name}' must be callable{hint}: got {part!r}")
        refuse_foreign(self.processors)
        if hasattr(self.processors, "endings"):
            raise TypeError(f"'processors' must be processors, not a stop condition: got {self.processors!r}")
        if not hasattr(self.stop, "endings"):
            raise TypeError(
                f"'stop' must be a stop condition, with endings{how_to_wrap(self.stop)}: got {self.stop!r}"
            )
        self._check_stop_strings()
        if self.echo_prompt and self.tokenizer is None:
            raise ValueError("'tokenizer' must be given where 'echo_prompt' is True: got None")
        if self.record_gap:
            self._check_gap()
        if self.drafter is not None:
            self._check_drafter()

    def _check_stop_strings(self) -> None:
        # What one reading of the ids finds, the other would not know where to cut.
        for part in parts(self.stop):
            own = getattr(part, "skip_special_tokens", self.skip_special_tokens)
            if self.tokenizer is not None and own != self.skip_special_tokens:
                raise ValueError(
                    f"'skip_special_tokens' must be the same for the text and for {part!r}: "
                    f"got {self.skip_special_tokens}"
                )

    def _check_gap(self) -> None:
        if not callable(getattr(self.selection, "gap", None)):
            raise TypeError(
                "'selection' must have gap(logits, history) where 'record_gap' is True: "
                f"got {self.selection!r}"
            )
        if getattr(self.verification, "compares_scores", False):
            raise ValueError(
                "'record_gap' must be False where choices are not the selection's own: "
                f"got True with {self.verification!r}"
            )

    def _check_drafter(self) -> None:
        if not callable(getattr(self.drafter, "propose", None)):
            raise TypeError(f"'drafter' must have propose(history, budget, choose): got {self.drafter!r}")
        if not callable(getattr(self.verification, "drafting", None)):
            raise TypeError(f"'verification' must have drafting(selection, start): got {self.verification!r}")
        if getattr(self.selection, "follows_logits", False):
            raise ValueError(f"{self.selection!r} depends on past logits: it cannot run under speculation")
        self.verification.drafting(cast("Selection", self.selection), torch.zeros(1, dtype=torch.int64))
        shape = self.decoder.shape
        if (nodes := getattr(self.drafter, "tree_nodes", None)) is not None:
            self._check_trees(nodes)
        else:
            most = (
                self.num_draft_tokens
                if isinstance(self.num_draft_tokens, int)
                else self.num_draft_tokens.most
            )
            if most + 1 > shape.scored_width:
                raise ValueError(
                    f"'num_draft_tokens' must be at most {shape.scored_width - 1}, one less than the columns "
                    f"that the decoder scores: got {most}. {_how_to_score(self.decoder, most + 1)}"
                )
        check_target = getattr(self.drafter, "check_target", None)
        if check_target is not None:
            check_target(shape)
        prepare = getattr(self.num_draft_tokens, "prepare", None)
        if prepare is not None:
            prepare(self.decoder, self.exact_width)

    def _check_trees(self, nodes: int) -> None:
        widths = getattr(self.decoder, "tree_widths", ())
        if max(widths, default=0) < nodes + 1:
            raise ValueError(
                f"'decoder' must score trees of {nodes} guesses and the token before them: it has the tree "
                f"widths {widths}. Compile it with tree_widths=({nodes + 1},), or a few more, which lets it "
                "catch up in the same forward"
            )
        if not getattr(self.verification, "takes_trees", False):
            raise ValueError(f"'verification' must take trees, as Agreement does: got {self.verification!r}")
        if not hasattr(self.selection, "several"):
            raise ValueError(f"'selection' must have several() for a tree's children: got {self.selection!r}")
        if self.exact_width:
            raise ValueError(
                "'exact_width' must be False with trees, which have programs of their own: got True"
            )

    def __call__(
        self,
        prompts: Any,
        streams: Sequence[int] | None = None,
        streamer: Any = None,
        logprobs: Logprobs | None = None,
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

            logprobs: Which log-probabilities to tell of the new tokens; None for none. Where a
                verification compares distributions, they are the target's all the same.

        Raises:
            TypeError: A prompt that is no ids, or a streamer that is none.

            ValueError: A prompt that is empty, too long or outside the vocabulary, or too many;
                log-probabilities after a stage that the chain does not have.
        """
        try:
            rows, statistics = as_rows(prompts, self.decoder.shape, self.tokenizer), Statistics()
            loop = self._loop(statistics, len(rows), logprobs)
            events = self._events(loop, self._history(rows, streams))
            if streamer is not None:
                events = forward(events, streamer, rows)
        except BaseException as error:
            # Somebody may be waiting at the streamer's other end.
            report_failure(streamer, error)
            raise
        return collect(events, rows, statistics)

    def stream(
        self, prompts: Any, streams: Sequence[int] | None = None, logprobs: Logprobs | None = None
    ) -> EventStream:
        """
        Generate event by event; arguments as in a call.

        Nothing runs ahead: the next round is decoded when the next event is asked for. Closing
        the iterator ends decoding, and so does leaving a loop over it; the generator is ready for
        the next call.
        """
        rows = as_rows(prompts, self.decoder.shape, self.tokenizer)
        return self._events(self._loop(Statistics(), len(rows), logprobs), self._history(rows, streams))

    def astream(
        self, prompts: Any, streams: Sequence[int] | None = None, logprobs: Logprobs | None = None
    ) -> AsyncEventStream:
        """
        Generate event by event without blocking the event loop; arguments as in a call.

        As in :meth:`stream` nothing runs ahead. A consumer that breaks off, raises or is cancelled
        ends decoding; ``aclose()`` comes back when no thread is inside any more.
        """
        return in_threads(self.stream(prompts, streams, logprobs))

    def prompt_logprobs(
        self, prompts: Any, streams: Sequence[int] | None = None, logprobs: Logprobs | None = None
    ) -> list[list[TokenLogprob | None]]:
        """
        What the decoder thinks of the tokens of *prompts* themselves.

        After a stage of the chain, a token is seen as the first new one after a prompt that ends
        before it. A generation that follows has nothing of the prompts to feed but the last token.

        Args:
            prompts: As in a call.

            streams: As in a call.

            logprobs: Which log-probabilities; those of ``Logprobs()`` if not given.

        Returns:
            For each prompt one for each of its tokens. The first is None: nothing precedes it.

        Raises:
            TypeError: As in a call.

            ValueError: As in a call.
        """
        from .prompt_logprobs import score_prompts

        rows = as_rows(prompts, self.decoder.shape, self.tokenizer)
        reads = self._recorder(Logprobs() if logprobs is None else logprobs, self._choose(len(rows)))
        return score_prompts(Slots.of(self.decoder), self._history(rows, streams), reads, self.exact_width)

    def logits(self, prompts: Any, streams: Sequence[int] | None = None) -> tuple[Tensor, History]:
        """
        What the decoder says after *prompts*, before any processor: for a look at a chain.

        Args:
            prompts: As in a call.

            streams: As in a call.

        Returns:
            Logits ``[rows, 1, vocab]`` and the history that they follow, as
            :func:`decodekit.processors.explain` takes them.
        """
        history = self._history(as_rows(prompts, self.decoder.shape, self.tokenizer), streams)
        slots, length = Slots.of(self.decoder), history.length[:, 0]
        with slots.lock, torch.no_grad():
            need = torch.ones_like(length)
            return slots.feed(history.ids[:, 0], length, need, self.exact_width).clone(), history

    def explain(self) -> "Placement":
        """Say which part of the choice runs in the decoder's forward, which on the host, and why."""
        from .placement import explain

        return explain(self)

    def _history(self, rows: list[list[int]], streams: Sequence[int] | None) -> History:
        numbers = stream_numbers(streams, len(rows))
        # Ordinary tensors, whatever mode the caller is in: the rounds write to them, perhaps elsewhere.
        with torch.inference_mode(False):
            return self._first_history(rows, numbers)

    def _first_history(self, rows: list[list[int]], numbers: torch.Tensor) -> History:
        # One more than there are positions: the last token need not be fed.
        ids = torch.zeros(len(rows), 1, self.decoder.shape.max_length + 1, dtype=torch.int64)
        for row, prompt in enumerate(rows):
            ids[row, 0, : len(prompt)] = torch.tensor(prompt)
        length = torch.tensor([len(prompt) for prompt in rows])
        # Only a selection that draws has a seed.
        seed = getattr(self.selection, "seed", 0)
        return History(ids, length[:, None], length, noise.streams(numbers, seed))

    def _choose(self, rows: int) -> Choose:
        return Choose(self.processors, begin_selection(self.selection, rows))

    def _recorder(self, logprobs: Logprobs, choose: Choose) -> "LogprobRecorder":
        # Few ask for log-probabilities.
        from .logprob_recorder import recorder

        return recorder(logprobs, choose, self.decoder.shape.vocab_size)

    def _loop(self, statistics: Statistics, rows: int, logprobs: Logprobs | None) -> Loop:
        choose = self._choose(rows)
        return Loop(
            slots=Slots.of(self.decoder),
            choose=choose,
            stop=begin(self.stop),
            drafting=self._drafting(choose),
            verification=self.verification,
            exact_width=self.exact_width,
            statistics=statistics,
            gap=getattr(self.selection, "gap", None) if self.record_gap else None,
            recorder=None if logprobs is None else self._recorder(logprobs, choose),
            device_chooses=decoder_chooses(self.decoder, choose, rows),
        )

    def _drafting(self, choose: Choose) -> Drafting | None:
        if self.drafter is None:
            return None
        return Drafting(
            self.drafter,
            self.num_draft_tokens,
            self.verification,
            choose,
            vocab_size=self.decoder.shape.vocab_size,
            chain_width=self.decoder.shape.scored_width,
            tree_width=max(getattr(self.decoder, "tree_widths", ()), default=0),
        )

    def _events(self, loop: Loop, history: History) -> EventStream:
        texts = self._texts(history)
        for bursts in loop.run(history):
            events = [_event(burst, texts) for burst in bursts]
            with loop.statistics.paused():
                yield from events

    def _texts(self, history: History) -> "list[RowText] | None":
        if self.tokenizer is None:
            return None
        # Ids alone take none of it.
        from .row_text import RowText
        from .text import Detokenizer

        detokenizer, endings = Detokenizer(self.tokenizer, self.skip_special_tokens), self.stop.endings
        echoes = [
            history.before(row, 0).tolist() if self.echo_prompt else () for row in range(len(history.length))
        ]
        return [RowText(detokenizer.another(), endings, echo) for echo in echoes]


def _how_to_score(decoder: Decoder, columns: int) -> str:
    """What its owner can do: one that others compiled knows better what they call it."""
    advise = getattr(decoder, "advise_width", None)
    return f"Compile it with {columns} among its widths" if advise is None else str(advise(columns))


def _event(burst: Burst, texts: "list[RowText] | None") -> Event:
    text = None if texts is None else texts[burst.row].push(burst.ids, burst.ending)
    return Event(burst.row, burst.ids, text, burst.ending, burst.logprobs)
