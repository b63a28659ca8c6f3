"""The generator: a decoder with its processors, sampler, stop condition and drafter."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs
import torch
from attrs import validators
from torch import Tensor

from .cache.slots import Slots
from .compatibility import a_draft_length, check_drafter, check_gap, check_parts, check_text
from .engine.drafting import Drafting
from .engine.exact_match_verification import ExactMatch
from .engine.feed_and_sample import decoder_samples, placement_of
from .engine.loop import Loop
from .history import History
from .optional_protocols import MeasuresGap, Seeded, StatefulSampler, reads_target_tokens
from .prompts import as_rows, first_history
from .protocols import Decoder, Drafter, DraftLength, Processor, Sampler, StopCondition, Verification
from .results.background import in_threads
from .results.events import AsyncEventStream, EventStream
from .results.generation import Generation, collect
from .results.logprobs import Logprobs, TokenLogprob
from .results.statistics import Statistics
from .results.streamers import forward, report_failure
from .results.timers import Timers
from .sampling import noise
from .sampling.greedy import Greedy
from .sampling.pipeline import SamplingPipeline
from .sampling.stateful_sampler import begin_sampler
from .stopping.composition import begin
from .stopping.max_new_tokens import MaxNewTokens
from .validation import as_whole, stream_numbers

if TYPE_CHECKING:
    from .engine.logprob_recorder import LogprobRecorder
    from .sampling_placement import Placement


@attrs.frozen(eq=False, kw_only=True)
class Generator:
    """
    Generate from prompts with a decoder, processors, a sampler, a stop condition and a drafter.

    Every part may be any object of its protocol (:mod:`decodekit.decoding.protocols`). A row's
    text depends only on its prompt, its random stream and the parts; neighbours, batch and drafter
    do not change it. (With a verification that compares distributions, the drafter and its lengths
    change the text, but not its distribution.)

    Threads may share a generator, and generators may share a decoder: they take turns by the step,
    with the same results as alone (see :class:`~.cache.slots.Slots`).
    """

    decoder: Decoder = attrs.field(kw_only=False)
    """Computes the logits."""

    processors: Processor | None = None
    """A processor or a chain of them; None leaves the logits as they are."""

    sampler: Sampler | StatefulSampler = attrs.field(factory=Greedy)
    """Samples from the processed logits."""

    stop: StopCondition = attrs.field(factory=lambda: MaxNewTokens(128))
    """Where a row ends; at the latest when the decoder has no position left."""

    drafter: Drafter | None = None
    """Proposes draft tokens; None for plain decoding."""

    num_draft_tokens: int | DraftLength = attrs.field(default=4, converter=as_whole, validator=a_draft_length)
    """
    The draft length k of each step, or a policy, such as
    :class:`~decodekit.speculation.AdaptiveLength`. The decoder must score k + 1 columns.
    """

    verification: Verification = attrs.field(factory=ExactMatch)
    """Decides how many draft tokens are accepted."""

    tokenizer: Any = attrs.field(default=None, repr=False)
    """Encodes strings and decodes ids."""

    skip_special_tokens: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """Whether the text leaves special tokens out."""

    echo_prompt: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """
    Whether the text begins with the prompt, in each row's first event. Prompt and new ids are then
    decoded together, so that a space or a character across the boundary is right. Stop strings read
    the new ids only; if the prompt ends inside a character, they may see another text than is shown.
    """

    exact_width: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """
    Whether every token goes through one program, the widest that scores all its columns. Then
    speculation and plain decoding, and a row beside others and the row alone, agree to the last bit.
    Prompts take longer.
    """

    record_gap: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """
    Whether to measure the margin of each sampled token; the smallest is in the statistics. If two runs
    that differ only in rounding diverge, it is less than twice the difference of their processed
    logits. Needs all processed logits, which takes time.
    """

    _pipeline: SamplingPipeline = attrs.field(init=False, repr=False)
    """The chain and the sampler, analysed once."""

    def __attrs_post_init__(self) -> None:
        """Check that the parts fit together."""
        sampler, verification = self.sampler, self.verification
        check_parts(self.decoder, self.processors, sampler, self.stop, verification, self.drafter)
        check_text(self.stop, self.tokenizer, self.skip_special_tokens, self.echo_prompt)
        if self.record_gap:
            check_gap(sampler, verification)
        if self.drafter is not None:
            length, exact = self.num_draft_tokens, self.exact_width
            check_drafter(self.drafter, length, verification, self.decoder, sampler, exact)
        # Each run has a pipeline of its own, which examines no processor again.
        object.__setattr__(self, "_pipeline", SamplingPipeline(self.processors, cast("Sampler", sampler)))

    def __call__(
        self,
        prompts: Any,
        random_streams: Sequence[int] | None = None,
        streamer: Any = None,
        logprobs: Logprobs | None = None,
    ) -> Generation:
        """
        Generate until all rows have ended.

        Args:
            prompts: One list of ids, a list of them, an integer array ``[batch, length]``
                (torch or numpy), or with a tokenizer a string or several. At most as many as
                the decoder has rows.

            random_streams: The rows' random streams, one number each; 0, 1, 2, ... if not given. With
                the same number a row gives the same text alone or in a batch.

            streamer: Receives every event as it occurs: an object with ``put_event`` and ``end``, or a
                Hugging Face streamer with ``put`` and ``end``.

            logprobs: Which log-probabilities of the new tokens to return; None for none. They are
                always the target's, also where a verification compares distributions.

        Raises:
            TypeError: An invalid prompt or streamer.

            ValueError: A prompt that is empty, too long or outside the vocabulary, or too many prompts;
                log-probabilities after a stage that the chain does not have.
        """
        try:
            rows = as_rows(prompts, self.decoder.shape, self.tokenizer)
            loop = self._loop(len(rows), logprobs)
            events = self._events(loop, self._history(rows, random_streams))
            if streamer is not None:
                events = forward(events, streamer, rows)
        except BaseException as error:
            # A consumer may be waiting at the streamer's other end.
            report_failure(streamer, error)
            raise
        return collect(events, rows, loop.timers.statistics)

    def stream(
        self, prompts: Any, random_streams: Sequence[int] | None = None, logprobs: Logprobs | None = None
    ) -> EventStream:
        """
        Generate event by event; arguments as in a call.

        Nothing runs ahead: the next step runs when the next event is requested. Closing the iterator,
        or leaving a loop over it, ends the generation; the generator is ready for the next call.
        """
        rows = as_rows(prompts, self.decoder.shape, self.tokenizer)
        return self._events(self._loop(len(rows), logprobs), self._history(rows, random_streams))

    def astream(
        self, prompts: Any, random_streams: Sequence[int] | None = None, logprobs: Logprobs | None = None
    ) -> AsyncEventStream:
        """
        Generate event by event without blocking the event loop; arguments as in a call.

        As in :meth:`stream`, nothing runs ahead. A consumer that breaks off, raises or is cancelled
        ends the generation; ``aclose()`` returns when its thread has finished.
        """
        return in_threads(self.stream(prompts, random_streams, logprobs))

    def prompt_logprobs(
        self, prompts: Any, random_streams: Sequence[int] | None = None, logprobs: Logprobs | None = None
    ) -> list[list[TokenLogprob | None]]:
        """
        The log-probabilities of the prompts' own tokens.

        After a stage of the chain, a token is scored as the first new token after a prompt that ends
        before it. A following generation only needs to feed the last token of each prompt.

        Args:
            prompts: As in a call.

            random_streams: As in a call.

            logprobs: Which log-probabilities; ``Logprobs()`` if not given.

        Returns:
            One for each token of each prompt; the first is None, as nothing precedes it.

        Raises:
            TypeError: As in a call.

            ValueError: As in a call.
        """
        from .engine.prompt_logprobs import score_prompts

        rows = as_rows(prompts, self.decoder.shape, self.tokenizer)
        reads = self._recorder(Logprobs() if logprobs is None else logprobs, self._begun(len(rows)))
        return score_prompts(
            Slots.of(self.decoder), self._history(rows, random_streams), reads, self.exact_width
        )

    def logits(self, prompts: Any, random_streams: Sequence[int] | None = None) -> tuple[Tensor, History]:
        """
        The decoder's logits after *prompts*, before any processor.

        Args:
            prompts: As in a call.

            random_streams: As in a call.

        Returns:
            Logits ``[rows, 1, vocab]`` and the history that they follow, as
            :func:`decodekit.processors.explain` takes them.
        """
        history = self._history(as_rows(prompts, self.decoder.shape, self.tokenizer), random_streams)
        slots, length = Slots.of(self.decoder), history.length[:, 0]
        with slots.lock, torch.no_grad():
            need = torch.ones_like(length)
            return slots.feed(history.ids[:, 0], length, need, self.exact_width).clone(), history

    def explain(self) -> "Placement":
        """Which stages run in the decoder's forward, which on the host, and why."""
        placement = placement_of(self.decoder, self._pipeline)
        if not placement.on_device:
            return placement
        notes = list(placement.notes)
        if self.record_gap:
            notes.append("'record_gap' reads the scores of every token")
        if self.drafter is not None and not reads_target_tokens(self.verification):
            notes.append(
                f"where tokens were drafted, {self.verification!r} reads the scores, not the sampled tokens"
            )
        return attrs.evolve(placement, notes=tuple(notes))

    def _history(self, rows: list[list[int]], random_streams: Sequence[int] | None) -> History:
        numbers = stream_numbers(random_streams, len(rows))
        # Only random samplers have a seed.
        seed = self.sampler.seed if isinstance(self.sampler, Seeded) else 0
        # Not inference tensors, in any mode of the caller: later steps write to them.
        with torch.inference_mode(False):
            # One more than the decoder's positions: the last token need not be fed.
            return first_history(rows, noise.random_streams(numbers, seed), self.decoder.shape.max_length + 1)

    def _begun(self, rows: int) -> SamplingPipeline:
        return self._pipeline.with_sampler(begin_sampler(self.sampler, rows))

    def _recorder(self, logprobs: Logprobs, pipeline: SamplingPipeline) -> "LogprobRecorder":
        # Imported late: log-probabilities are rarely requested.
        from .engine.logprob_recorder import recorder

        return recorder(logprobs, pipeline, self.decoder.shape.vocab_size)

    def _loop(self, rows: int, logprobs: Logprobs | None) -> Loop:
        timers = Timers(Statistics())
        pipeline, slots, drafting = self._begun(rows), Slots.of(self.decoder), None
        if self.drafter is not None:
            drafting = Drafting(self.drafter, self.num_draft_tokens, self.verification, pipeline, slots)
        return Loop(
            slots=slots,
            pipeline=pipeline,
            stop=begin(self.stop),
            drafting=drafting,
            verification=self.verification,
            exact_width=self.exact_width,
            timers=timers,
            gap=cast(MeasuresGap, self.sampler).gap if self.record_gap else None,
            recorder=None if logprobs is None else self._recorder(logprobs, pipeline),
            samples_on_device=decoder_samples(slots, pipeline, rows),
        )

    def _events(self, loop: Loop, history: History) -> EventStream:
        texts = None
        if self.tokenizer is not None:
            # Imported late: not needed for ids alone.
            from .results.row_text import row_texts

            finishes, skip = self.stop.finishes, self.skip_special_tokens
            texts = row_texts(self.tokenizer, skip, finishes, history, self.echo_prompt)
        for outputs in loop.run(history):
            events = [
                output.event(None if texts is None else texts[output.row].push(output.ids, output.finish))
                for output in outputs
            ]
            with loop.timers.paused():
                yield from events
