"""What beam search and stochastic beams have in common: their parts, and the table that they fill."""

import abc
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
from attrs import validators
from torch import Tensor

from ...cache.slots import feeder_of
from ...engine.compatibility import check_decoder, check_parts, check_text
from ...engine.end_tokens import AUTO, as_end_tokens, end_tokens, with_end_of_sequence
from ...engine.exact_match_verification import ExactMatch
from ...engine.lockstep import check_lockstep
from ...engine.parts import DEFAULT_NEW_TOKENS
from ...engine.start_token import a_start_token, start_token
from ...engine.turn_checks import check_one_value
from ...optional_protocols import is_bit_exact, is_row_independent, numbered_from
from ...prompts import as_rows, first_history
from ...protocols import Decoder, Processor, StopCondition
from ...results.events import Event, EventStream
from ...results.row_text import RowText
from ...results.statistics import Statistics, check_statistics
from ...results.timers import Timers
from ...sampling import noise
from ...sampling.greedy import Greedy
from ...sampling.pipeline import SamplingPipeline
from ...stopping.composition import check_rows
from ...stopping.max_new_tokens import MaxNewTokens
from ...text.detokenizer import Detokenizer
from ...text.per_tokenizer import tokenizers_unchanged
from ...text.tokenizer_check import a_tokenizer
from ...validation import a_whole_number, as_whole, stream_numbers
from .beam import Hypothesis
from .beam_stop import BeamStop, PromptStop
from .generation import BeamGeneration, collect_beams
from .prompt_search import PromptSearch
from .table import BeamTable


@attrs.frozen(eq=False, kw_only=True)
class BeamStrategy(abc.ABC):
    """
    Several sequences of each prompt at once.

    Each beam takes a row of the decoder, so ``batch_size // beams`` prompts run at a time; each of the others
    begins when one ends. Its sequences do not depend on its neighbours.

    Processors run on the log-softmax of the logits. To them a prompt is a row, and its beams are columns,
    each with its own tokens: a parameter with a value for each row, of a processor or a limit, has one for
    each prompt, which holds for all of its beams. Where prompts take turns, a processor's is one for all.
    """

    decoder: Decoder = attrs.field(kw_only=False)
    """Computes the logits. If it implements ``CopiesRows``, only new tokens are fed after the prompts."""

    beams: int = attrs.field(converter=as_whole, validator=[a_whole_number, validators.ge(1)])
    """The number of beams K of each prompt, at most the decoder's rows."""

    processors: Processor | None = None
    """A processor or a chain of them; None leaves the log-probabilities as they are."""

    stop: StopCondition = attrs.field(factory=lambda: MaxNewTokens(DEFAULT_NEW_TOKENS))
    """Where a sequence ends: end tokens and limits, joined with ``|``; other conditions are refused."""

    end_of_sequence: Any = attrs.field(default=AUTO, converter=as_end_tokens, validator=end_tokens)
    """As in a :class:`~decodekit.decoding.Generator`."""

    start_of_sequence: Any = attrs.field(default=AUTO, converter=as_whole, validator=a_start_token)
    """As in a :class:`~decodekit.decoding.Generator`."""

    tokenizer: Any = attrs.field(default=None, repr=False, validator=validators.optional(a_tokenizer))
    """Encodes strings and decodes ids."""

    skip_special_tokens: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """Whether the text leaves special tokens out."""

    echo_prompt: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """Whether the text begins with the prompt."""

    exact_width: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """Whether every token goes through one program, as in a :class:`~decodekit.decoding.Generator`."""

    _stop: BeamStop = attrs.field(init=False, repr=False)
    _pipeline: SamplingPipeline = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Check that the parts fit together, and the decoder."""
        check_decoder(self.decoder)
        check_parts(self.processors, Greedy(), self.stop, ExactMatch(), None)
        check_text(self.stop, self.tokenizer, self.skip_special_tokens, self.echo_prompt)
        rows = self.decoder.shape.batch_size
        if self.beams > rows:
            raise ValueError(
                f"'beams' must be at most {rows}, the decoder's rows: got {self.beams}. Compile it with "
                f"batch_size={self.beams}"
            )
        if not is_row_independent(feeder_of(self.decoder)):
            raise ValueError(
                "beams move between rows, so 'decoder' must have nothing of its own for each row, such as a "
                f"negative prompt: give one for all: got {self.decoder!r}"
            )
        check_lockstep(self.decoder, beams=self)
        stop = BeamStop(with_end_of_sequence(self.stop, self.end_of_sequence, self.tokenizer))
        object.__setattr__(self, "_stop", stop)
        object.__setattr__(self, "_pipeline", SamplingPipeline(self.processors, Greedy()))

    @abc.abstractmethod
    def _begin(self, stop: PromptStop, prompt: int, stream: int) -> PromptSearch:
        """The search for one prompt of *prompt* tokens, with its random stream."""

    @property
    @abc.abstractmethod
    def _returned(self) -> int:
        """The most sequences of each prompt to return."""

    @abc.abstractmethod
    def _run_seed(self) -> int:
        """The seed of one call."""

    def __call__(
        self, prompts: Any, random_streams: Sequence[int] | None = None, streamer: None = None
    ) -> BeamGeneration:
        """
        Generate the sequences of all prompts.

        Args:
            prompts: As in a call of a :class:`~decodekit.decoding.Generator`: any number.

            random_streams: The prompts' random streams, one number each; 0, 1, 2, ... if not given.

            streamer: Must be None.

        Raises:
            TypeError: An invalid prompt.

            ValueError: A prompt that is empty, too long or outside the vocabulary; limits for another number
                of prompts; a streamer.
        """
        if streamer is not None:
            raise ValueError(
                "'streamer' must be None: no token of beams is final before the last, so there is nothing to "
                f"stream: got {streamer!r}. stream() gives each sequence as one event"
            )
        rows = self._rows(prompts)
        seed, timers = self._run_seed(), self._timers(Statistics())
        found: list[list[Hypothesis]] = [[] for _ in rows]
        for number, hypotheses in self._ended(rows, self._streams(rows, random_streams, seed), timers):
            found[number] = hypotheses
        texts = None
        if self.tokenizer is not None:
            with tokenizers_unchanged():
                texts = [self._text(row, one) for row, own in zip(rows, found, strict=True) for one in own]
        timers.touch()
        return collect_beams(rows, found, texts, timers.statistics, seed)

    def stream(
        self,
        prompts: Any,
        random_streams: Sequence[int] | None = None,
        statistics: Statistics | None = None,
    ) -> EventStream:
        """
        Generate prompt by prompt; arguments as in a call, and *statistics* to count the run in.

        When the search for a prompt is over, each of its sequences comes as one event, best first, whose row
        is the prompt's number. No token of beams is final earlier.
        """
        rows = self._rows(prompts)
        timers = self._timers(Statistics() if statistics is None else statistics)
        return self._events(rows, self._streams(rows, random_streams, self._run_seed()), timers)

    def _rows(self, prompts: Any) -> list[list[int]]:
        if self.tokenizer is not None:
            # Refused before the search.
            Detokenizer(self.tokenizer, self.skip_special_tokens)
        start = start_token(self.start_of_sequence, self.tokenizer)
        return as_rows(prompts, self.decoder.shape, self.tokenizer, any_number=True, start=start)

    def _timers(self, statistics: Statistics) -> Timers:
        check_statistics(statistics)
        statistics.append_run(is_bit_exact(self.decoder))
        return Timers(statistics)

    def _streams(self, rows: list[list[int]], numbers: Sequence[int] | None, seed: int) -> Tensor:
        check_rows(self._stop.condition, len(rows))
        streams, shape = noise.random_streams(stream_numbers(numbers, len(rows)), seed), self.decoder.shape
        if len(rows) > shape.batch_size // self.beams:
            first = first_history(rows[:1], streams[:1], shape.max_length + 1)
            check_one_value(self.processors, shape.vocab_size, first, len(rows))
        return streams

    def _events(self, rows: list[list[int]], streams: Tensor, timers: Timers) -> EventStream:
        for number, hypotheses in self._ended(rows, streams, timers):
            events = []
            with tokenizers_unchanged():
                for one in hypotheses:
                    text = None if self.tokenizer is None else self._text(rows[number], one)
                    events.append(Event(number, tuple(one.ids), text, one.finish))
            with timers.paused():
                yield from events

    # A method: while it runs, it keeps the decoder alive, which the feeder does not.
    def _ended(
        self, rows: list[list[int]], streams: Tensor, timers: Timers
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The sequences to return of each prompt, when they are known."""
        seats = min(len(rows), self.decoder.shape.batch_size // self.beams)
        table = BeamTable(
            feeder_of(self.decoder),
            seats,
            self.beams,
            # Otherwise a seat is now one prompt and now another.
            together=self._pipeline if seats == len(rows) else None,
            exact_width=self.exact_width,
            timers=timers,
        )
        waiting = iter(range(len(rows)))
        owners: dict[int, int] = {}
        free = list(range(seats))
        while True:
            for seat, number in zip(free, waiting, strict=False):
                length, positions = len(rows[number]), self.decoder.shape.max_length
                stop, stream = self._stop.of_prompt(number, length, positions), int(streams[number])
                search, pipeline = self._begin(stop, length, stream), self._pipeline_of(number)
                table.take(seat, search, rows[number], stream, pipeline)
                owners[seat] = number
            if not any(table.seats):
                return
            free = []
            for over in table.step():
                hypotheses = over.search.hypotheses()[: self._returned]
                for one in hypotheses:
                    timers.statistics.record_first(min(1, one.beam.length))
                    timers.statistics.tokens += max(0, one.beam.length - 1)
                free.append(over.number)
                yield owners.pop(over.number), hypotheses

    def _pipeline_of(self, prompt: int) -> SamplingPipeline:
        """What processes the beams of the prompt of that number alone."""
        own = numbered_from(self.processors, prompt)
        return self._pipeline if own is self.processors else SamplingPipeline(own, Greedy())

    def _text(self, prompt: list[int], one: Hypothesis) -> str:
        detokenizer = Detokenizer(self.tokenizer, self.skip_special_tokens)
        text = RowText(detokenizer, self._stop.condition.finishes, prompt if self.echo_prompt else ())
        return text.push(one.ids, one.finish)
