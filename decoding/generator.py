"""The generator: a decoder with its processors, sampler, stop condition and drafter."""

from collections.abc import Sequence
from contextlib import suppress
from os import PathLike
from typing import TYPE_CHECKING, Any, Never, Self

import attrs
import torch
from attrs import validators
from torch import Tensor

from .cache.slots import feeder_of
from .engine.active_request import ActiveRequest
from .engine.compatibility import check_decoder
from .engine.decode_loop import DecodeLoop
from .engine.feed_and_sample import placement_of
from .engine.no_effect import warn_of_equal_samples
from .engine.parts import (
    Parts,
    begin_run,
    begun_pipeline,
    check_fit,
    prompt_rows,
    recorder_of,
    seed_of,
    texts_of,
)
from .history import History
from .option_places import refuse_options, with_named_places
from .optional_protocols import AnyDecoder, Saves, is_bit_exact, reads_target_tokens, stages_of
from .pretrained_loader import pretrained_loader
from .prompts import as_rows, first_history
from .results.background import in_thread
from .results.events import AsyncEventStream, EventStream
from .results.generation import Generation, collect
from .results.html import summary_table
from .results.logprobs import Logprobs, TokenLogprob
from .results.statistics import Statistics, check_statistics
from .results.streamers import forward, report_failure
from .results.timers import Timers
from .sampling import noise
from .validation import is_whole, stream_numbers

if TYPE_CHECKING:
    from .results.row_text import RowText
    from .sampling_placement import Placement


@with_named_places
@attrs.frozen(eq=False, kw_only=True, repr=False)
class Generator(Parts):
    """
    Generate from prompts with a decoder, processors, a sampler, a stop condition and a drafter.

    Every part may be any object of its protocol (:mod:`decodekit.decoding.protocols`). A row's
    text depends only on its prompt, its random stream and the parts; neighbours, batch and drafter
    do not change it. (With a verification that compares distributions, the drafter and its lengths
    change the text, but not its distribution.)

    Threads may share a generator, and generators may share a decoder: they take turns by the step,
    with the same results as alone (see :class:`~.cache.slots.Slots`).
    """

    decoder: AnyDecoder = attrs.field(kw_only=False)
    """Computes the logits: a decoder, or several as one, such as :class:`~.strategies.guided.Guided`."""

    exact_width: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """
    Whether every token goes through one program, the widest that scores all its columns. Then
    speculation and plain decoding, and a row beside others and the row alone, agree to the last bit.
    Prompts take longer.
    """

    def __attrs_post_init__(self) -> None:
        """Check that the parts fit together, and the decoder."""
        check_decoder(self.decoder)
        super().__attrs_post_init__()
        check_fit(self, self.decoder, self.exact_width)

    @classmethod
    def from_pretrained(cls, model: Any, **options: Any) -> Self:
        """
        A generator from a model's files: decoder, tokenizer, generation config and end of sequence.

        ``Generator.from_pretrained("model", max_length=1024)([{"role": "user", "content": "Hello"}])``

        The generation config gives processors, sampler, stop and end-of-sequence tokens
        (:func:`~decodekit.processors.from_generation_config`), each unless it is given; without a limit of
        its own, 128 new tokens. A tokenizer's end of sequence counts too. A chain that is not given is read
        for the sampler that is: with ``Greedy()`` a config's temperature and filters are left out.

        Args:
            model: The path or hub id of a model, a GGUF file, a loaded model, or the folder or hub id of a
                decoder that was saved, which is loaded and not compiled.

            **options: Parts of this generator by name; options of
                :func:`~decodekit.neuron_backend.compile_decoder`, or of
                :func:`~decodekit.neuron_backend.load_decoder` for a saved decoder, except *processors* and
                *sampler*, which are the generator's; ``generation_config``: one to use in place of the
                model's, or None to read none; and ``cache``: True to keep the compiled decoder in the user's
                cache folder, where the commands keep theirs, or a folder for it. The same model with the same
                options is then loaded the next time, on the same kind of processor and with the same
                versions.

        Raises:
            TypeError: An option is unknown, or a required one is missing; a loaded model is to be kept.

            ValueError: An argument is invalid, or the generation config has a field that cannot be mapped.

            FileNotFoundError: There is no such model.
        """
        return cls(**pretrained_loader().generator_arguments(cls, model, **options))

    def save(self, folder: str | PathLike[str]) -> None:
        """
        Save the decoder and the tokenizer into *folder*, for :meth:`from_pretrained`.

        Other parts of the generator are not saved.

        Raises:
            TypeError: The decoder cannot be saved.

            ValueError: *folder* has other contents.
        """
        if not isinstance(self.decoder, Saves):
            raise TypeError(f"'decoder' must have save(folder, tokenizer): got {self.decoder!r}")
        self.decoder.save(folder, self.tokenizer)

    def __repr__(self) -> str:
        """
        One line: the decoder's shape, and the parts by their types.

        The values of the parts are left out: see the attributes.
        """
        shown = (f"{name}={value}" for name, value in self._summary().items())
        return f"<{type(self).__name__}: {', '.join(shown)}>"

    def _repr_html_(self) -> str:
        """The decoder's shape and the parts."""
        return summary_table(type(self).__name__, self._summary())

    def _summary(self) -> dict[str, str]:
        """What a summary shows, by name; parts that are not given are left out."""
        shape = self.decoder.shape
        sizes = f"batch_size={shape.batch_size}, max_length={shape.max_length}, widths={shape.widths}"
        stages = [type(stage).__name__ for stage in stages_of(self.processors)]
        others = {
            "sampler": self.sampler,
            "stop": self.stop,
            "drafter": self.drafter,
            "tokenizer": self.tokenizer,
        }
        return {
            "decoder": f"{type(self.decoder).__name__}({sizes})",
            **({"processors": " | ".join(stages)} if stages else {}),
            **{name: type(part).__name__ for name, part in others.items() if part is not None},
        }

    @property
    def parts(self) -> Parts:
        """These parts, as a table of requests takes them; it ignores the decoder."""
        return self

    def __call__(
        self,
        prompts: Any,
        random_streams: Sequence[int] | None = None,
        streamer: Any = None,
        logprobs: Logprobs | None = None,
        num_samples: int = 1,
        **others: Never,
    ) -> Generation:
        """
        Generate until all rows have ended.

        Args:
            prompts: One list of ids, a list of them, an integer array ``[batch, length]`` (torch or numpy),
                or what a tokenizer returns: a mapping with ``input_ids`` and maybe an ``attention_mask``,
                whose padding is left out, on either side. With a tokenizer also a string, a chat
                (``[{"role": "user", "content": "..."}]``, in its chat template), or several of them. With a
                start token (:attr:`start_of_sequence`) also None, and prompts without tokens. More than the
                decoder has rows take turns: each begins when a row is free.

            random_streams: The rows' random streams, one number each; 0, 1, 2, ... if not given. With
                the same number a row gives the same text alone or in a batch.

            streamer: Receives every event as it occurs: an object with ``put_event`` and ``end``, or a
                Hugging Face streamer with ``put`` and ``end``.

            logprobs: Which log-probabilities of the new tokens to return; None for none. They are
                always the target's, also where a verification compares distributions.

            num_samples: How many times to continue each prompt. The rows of prompt *p* are those from
                ``p * num_samples`` on, each with a random stream of its own, as if the prompt were given so
                many times. Where the decoder :class:`~.optional_protocols.CopiesRows`, it is fed once.

            **others: None. The error names the part that takes the place of another toolkit's option.

        Raises:
            TypeError: An invalid prompt, streamer or number, or another option.

            ValueError: A prompt that is empty, too long or outside the vocabulary; log-probabilities after a
                stage that the chain does not have; more prompts than rows with parameters for each row, or
                with a drafter that grows trees.
        """
        try:
            refuse_options(others, "random_streams, streamer, logprobs and num_samples")
            rows = self._rows(prompts, num_samples)
            timers = self._timers(Statistics())
            seed = seed_of(self)
            events = self._events(self._history(rows, random_streams, seed), timers, logprobs)
            if streamer is not None:
                events = forward(events, streamer, rows)
        except BaseException as error:
            # A consumer may be waiting at the streamer's other end.
            report_failure(streamer, error)
            raise
        return collect(events, rows, timers.statistics, seed)

    def stream(
        self,
        prompts: Any,
        random_streams: Sequence[int] | None = None,
        logprobs: Logprobs | None = None,
        num_samples: int = 1,
        statistics: Statistics | None = None,
        **others: Never,
    ) -> EventStream:
        """
        Generate event by event; arguments as in a call.

        Nothing runs ahead: the next step runs when the next event is requested. Closing the iterator,
        or leaving a loop over it, ends the generation; the generator is ready for the next call.

        Args:
            prompts: As in a call.

            random_streams: As in a call.

            logprobs: As in a call.

            num_samples: As in a call.

            statistics: Counts the run as it goes: ``Statistics()``, or that of runs that have ended, to add
                to.

            **others: As in a call.
        """
        refuse_options(others, "random_streams, logprobs, num_samples and statistics")
        rows = self._rows(prompts, num_samples)
        history = self._history(rows, random_streams)
        timers = self._timers(Statistics() if statistics is None else statistics)
        return self._events(history, timers, logprobs)

    def astream(
        self,
        prompts: Any,
        random_streams: Sequence[int] | None = None,
        logprobs: Logprobs | None = None,
        num_samples: int = 1,
        statistics: Statistics | None = None,
        **others: Never,
    ) -> AsyncEventStream:
        """
        Generate event by event without blocking the event loop; arguments as of :meth:`stream`.

        As in :meth:`stream`, nothing runs ahead. A consumer that breaks off, raises or is cancelled
        ends the generation; ``aclose()`` returns when its thread has finished.
        """
        return in_thread(self.stream(prompts, random_streams, logprobs, num_samples, statistics, **others))

    def prompt_logprobs(
        self, prompts: Any, random_streams: Sequence[int] | None = None, logprobs: Logprobs | None = None
    ) -> list[list[TokenLogprob | None]]:
        """
        The log-probabilities of the prompts' own tokens.

        After a stage of the chain, a token is scored as the first new token after a prompt that ends
        before it. A following generation only needs to feed the last token of each prompt.

        Args:
            prompts: As in a call, at most as many as the decoder has rows.

            random_streams: As in a call.

            logprobs: Which log-probabilities; ``Logprobs()`` if not given.

        Returns:
            One for each token of each prompt; the first is None, as nothing precedes it.

        Raises:
            TypeError: As in a call.

            ValueError: As in a call.
        """
        from .engine.prompt_logprobs import score_prompts

        rows = as_rows(prompts, self.decoder.shape, self.tokenizer, start=self.start_token)
        feeder, request = feeder_of(self.decoder), Logprobs() if logprobs is None else logprobs
        history = self._history(rows, random_streams)
        recorder = recorder_of(request, begun_pipeline(self, len(rows)), feeder)
        return score_prompts(feeder, history, recorder, self.exact_width)

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
        rows = as_rows(prompts, self.decoder.shape, self.tokenizer, start=self.start_token)
        history = self._history(rows, random_streams)
        feeder, length = feeder_of(self.decoder), history.length[:, 0]
        with feeder.lock, torch.no_grad():
            fed = feeder.feed(history, length, torch.ones_like(length), exact_width=self.exact_width)
            feeder.logits_in_use = True
            try:
                return fed.logits.clone(), history
            finally:
                feeder.logits_in_use = False

    def explain(self) -> "Placement":
        """Which stages run in the decoder's forward, which on the host, and why."""
        placement = placement_of(self.decoder, self.pipeline)
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

    def _rows(self, prompts: Any, num_samples: int) -> list[list[int]]:
        """The ids of each row's prompt."""
        if not is_whole(num_samples):
            raise TypeError(f"'num_samples' must be a whole number: got {num_samples!r}")
        if num_samples < 1:
            raise ValueError(f"'num_samples' must be >= 1: got {num_samples}")
        warn_of_equal_samples(self.pipeline, num_samples)
        rows = prompt_rows(self, prompts, self.decoder.shape)
        return [row for row in rows for _ in range(num_samples)]

    def _timers(self, statistics: Statistics) -> Timers:
        check_statistics(statistics)
        statistics.append_run(is_bit_exact(self.decoder))
        return Timers(statistics)

    def _history(
        self, rows: list[list[int]], random_streams: Sequence[int] | None, seed: int | None = None
    ) -> History:
        numbers = stream_numbers(random_streams, len(rows))
        seed = seed_of(self) if seed is None else seed
        # Not inference tensors, in any mode of the caller: later steps write to them.
        with torch.inference_mode(False):
            # One more than the decoder's positions: the last token need not be fed. Prompts that take turns
            # are copied into a table.
            shape, longest = self.decoder.shape, max(map(len, rows))
            capacity = longest if len(rows) > shape.batch_size else shape.max_length + 1
            return first_history(rows, noise.random_streams(numbers, seed), capacity)

    def _events(self, history: History, timers: Timers, logprobs: Logprobs | None) -> EventStream:
        """Begin, with a table of this one request; nothing is fed before the first event is requested."""
        feeder = feeder_of(self.decoder)
        if len(history.length) > self.decoder.shape.batch_size:
            # Imported late: such calls are rare.
            from .serving.many_prompts import events_of_many

            return events_of_many(self, feeder, history, timers, logprobs, self.exact_width)
        run = begin_run(self, feeder, len(history.length), timers, logprobs)
        loop = DecodeLoop(feeder, history, timers, self.exact_width)
        return self._events_of(loop, loop.join(run, history, 0), texts_of(self, history))

    # A method: while it runs, the generator keeps its decoder alive, which the feeder does not.
    def _events_of(
        self, loop: DecodeLoop, request: ActiveRequest, texts: "Sequence[RowText] | None"
    ) -> EventStream:
        while request.active:
            for _, outputs, learn in loop.step():
                events = [
                    output.event(None if texts is None else texts[output.row].push(output.ids, output.finish))
                    for output in outputs
                ]
                with loop.timers.paused():
                    try:
                        yield from events
                    except GeneratorExit:
                        # The reader has left; the step was made.
                        with suppress(Exception):
                            learn()
                        raise
                learn()
