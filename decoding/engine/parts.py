"""The parts of a generation, validated."""

from typing import TYPE_CHECKING, Any, cast

import attrs
from attrs import validators

from ..history import History
from ..optional_protocols import AnyDecoder, MeasuresGap, Seeded, StatefulSampler, numbered_from
from ..prompts import as_rows
from ..protocols import (
    DecoderShape,
    Drafter,
    DraftLength,
    Processor,
    Sampler,
    StopCondition,
    Verification,
)
from ..results.logprobs import Logprobs
from ..results.timers import Timers
from ..sampling import noise
from ..sampling.greedy import Greedy
from ..sampling.pipeline import SamplingPipeline
from ..sampling.stateful_sampler import begin_sampler
from ..stopping.composition import begin, by_token, check_rows, parts as conditions
from ..stopping.max_new_tokens import MaxNewTokens
from ..text.tokenizer_check import a_tokenizer
from ..token_feeder import TokenFeeder
from ..validation import as_whole
from .compatibility import a_draft_length, check_drafter, check_gap, check_parts, check_text
from .drafting import Drafting
from .end_tokens import AUTO, as_end_tokens, end_tokens, with_end_of_sequence
from .exact_match_verification import ExactMatch
from .feed_and_sample import feeder_samples
from .lockstep import check_lockstep
from .no_effect import warn_of_no_effect
from .run import Run
from .start_token import a_start_token, start_token

if TYPE_CHECKING:
    from ..results.row_text import RowText
    from .logprob_recorder import LogprobRecorder

DEFAULT_NEW_TOKENS = 128
"""The limit of a generation without a stop condition."""


@attrs.frozen(eq=False, kw_only=True)
class Parts:
    """
    Everything of a generation but its decoder and its prompts.

    Every part may be any object of its protocol (:mod:`decodekit.decoding.protocols`).
    """

    processors: Processor | None = None
    """A processor or a chain of them; None leaves the logits as they are."""

    sampler: Sampler | StatefulSampler = attrs.field(factory=Greedy)
    """Samples from the processed logits."""

    stop: StopCondition = attrs.field(factory=lambda: MaxNewTokens(DEFAULT_NEW_TOKENS))
    """Where a row ends; at the latest when the decoder has no position left."""

    end_of_sequence: Any = attrs.field(
        default=AUTO, converter=as_end_tokens, validator=end_tokens, kw_only=True
    )
    """
    Tokens that end a row too, as :class:`~..stopping.end_of_sequence.EndOfSequence` does: an id or several.
    ``"auto"``: that of the tokenizer, if there is one. None: none. A :attr:`stop` that has an
    ``EndOfSequence`` anywhere is left as it is.
    """

    start_of_sequence: Any = attrs.field(default=AUTO, converter=as_whole, validator=a_start_token)
    """
    The token that stands for a prompt without tokens, None or ``""``: an id. ``"auto"``: the tokenizer's
    ``bos_token_id``, if there is one. None: prompts must have tokens.
    """

    drafter: Drafter | None = None
    """Proposes draft tokens; None for plain decoding."""

    num_draft_tokens: int | DraftLength = attrs.field(default=4, converter=as_whole, validator=a_draft_length)
    """
    The draft length k of each step, or a policy, such as
    :class:`~decodekit.speculation.AdaptiveLength`. The decoder must score k + 1 columns.
    """

    verification: Verification = attrs.field(factory=ExactMatch)
    """Decides how many draft tokens are accepted."""

    tokenizer: Any = attrs.field(default=None, repr=False, validator=validators.optional(a_tokenizer))
    """Encodes strings and decodes ids."""

    skip_special_tokens: bool = attrs.field(default=True, validator=validators.instance_of(bool))
    """Whether the text leaves special tokens out."""

    echo_prompt: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """
    Whether the text begins with the prompt, in each row's first event. Prompt and new ids are then
    decoded together, so that a space or a character across the boundary is right. Stop strings read
    the new ids only; if the prompt ends inside a character, they may see another text than is shown.
    """

    record_gap: bool = attrs.field(default=False, validator=validators.instance_of(bool))
    """
    Whether to measure the margin of each sampled token; the smallest is in the statistics. If two runs
    that differ only in rounding diverge, it is less than twice the difference of their processed
    logits. Needs all processed logits, which takes time.
    """

    stop_condition: StopCondition = attrs.field(init=False, repr=False)
    """:attr:`stop`, joined with :attr:`end_of_sequence`."""

    start_token: int | None = attrs.field(init=False, repr=False)
    """:attr:`start_of_sequence` as an id; None if there is none."""

    pipeline: SamplingPipeline = attrs.field(init=False, repr=False)
    """The chain and the sampler, analysed once."""

    def __attrs_post_init__(self) -> None:
        """Check that the parts fit together."""
        check_parts(self.processors, self.sampler, self.stop, self.verification, self.drafter)
        stop = with_end_of_sequence(self.stop, self.end_of_sequence, self.tokenizer)
        object.__setattr__(self, "stop_condition", stop)
        object.__setattr__(self, "start_token", start_token(self.start_of_sequence, self.tokenizer))
        check_text(self.stop, self.tokenizer, self.skip_special_tokens, self.echo_prompt)
        if self.record_gap:
            check_gap(self.sampler, self.verification)
        sampler = cast("Sampler", self.sampler)
        object.__setattr__(self, "pipeline", SamplingPipeline(self.processors, sampler))
        # Conditions and gaps may read the processed logits.
        if by_token(stop) is not None and not self.record_gap:
            warn_of_no_effect(self.pipeline)


def check_fit(parts: Parts, decoder: AnyDecoder, exact_width: bool) -> None:
    """
    Check that *parts* fit *decoder*, and let their drafter and draft length examine it.

    Raises:
        TypeError: The drafter or the verification is none.

        ValueError: A part does not fit.
    """
    check_lockstep(decoder, sampler=parts.sampler)
    for condition in conditions(parts.stop_condition):
        check_lockstep(decoder, stop=condition)
    if parts.drafter is not None:
        length, verification = parts.num_draft_tokens, parts.verification
        check_lockstep(decoder, drafter=parts.drafter, num_draft_tokens=length)
        check_drafter(parts.drafter, length, verification, decoder, parts.sampler, exact_width)


def begin_run(
    parts: Parts,
    feeder: TokenFeeder,
    rows: int,
    timers: Timers,
    logprobs: Logprobs | None = None,
    first_row: int = 0,
    prompt_number: int = 0,
) -> Run:
    """
    Begin a request.

    Args:
        parts: They fit the decoder (:func:`check_fit`).

        feeder: Feeds it.

        rows: The number of the request's rows.

        timers: Its own.

        logprobs: Which log-probabilities to record; None for none.

        first_row: The number of its first row in the statistics.

        prompt_number: The number of its first row's prompt, for processors that depend on it.

    Raises:
        TypeError: *logprobs* is no request for log-probabilities.

        ValueError: They are of a stage that the chain does not have, or the stop condition has limits for
            another number of rows.
    """
    check_rows(parts.stop_condition, rows)
    pipeline, drafting = begun_pipeline(parts, rows, prompt_number), None
    if parts.drafter is not None:
        length, verification = parts.num_draft_tokens, parts.verification
        drafting = Drafting(parts.drafter, length, verification, pipeline, feeder.shape, feeder.tree_widths)
    return Run(
        pipeline=pipeline,
        stop=begin(parts.stop_condition),
        verification=parts.verification,
        timers=timers,
        drafting=drafting,
        gap=cast(MeasuresGap, parts.sampler) if parts.record_gap else None,
        recorder=None if logprobs is None else recorder_of(logprobs, pipeline, feeder),
        on_device=feeder_samples(feeder, pipeline, rows),
        first_row=first_row,
    )


def prompt_rows(parts: Parts, prompts: Any, shape: DecoderShape) -> list[list[int]]:
    """
    The ids of each of *prompts*, any number, as *parts* encode and begin them.

    Raises:
        TypeError, ValueError: As :func:`~..prompts.as_rows`.
    """
    return as_rows(prompts, shape, parts.tokenizer, any_number=True, start=parts.start_token)


def seed_of(parts: Parts) -> int:
    """The seed of one call: the sampler's own, or a fresh one."""
    # Only random samplers have one.
    seed = parts.sampler.seed if isinstance(parts.sampler, Seeded) else 0
    return noise.fresh_seed() if seed is None else seed


def begun_pipeline(parts: Parts, rows: int, prompt_number: int = 0) -> SamplingPipeline:
    """The chain and the sampler of one run over *rows* rows, whose prompts have numbers from that one on."""
    chain, sampler = parts.processors, begin_sampler(parts.sampler, rows)
    numbered = numbered_from(chain, prompt_number)
    return parts.pipeline.with_sampler(sampler) if numbered is chain else SamplingPipeline(numbered, sampler)


def recorder_of(logprobs: Logprobs, pipeline: SamplingPipeline, feeder: TokenFeeder) -> "LogprobRecorder":
    """What records *logprobs* in a run; raises as :func:`begin_run`."""
    # Imported late: log-probabilities are rarely requested.
    from .logprob_recorder import recorder

    return recorder(logprobs, pipeline, feeder.shape.vocab_size)


def texts_of(parts: Parts, history: History) -> "list[RowText] | None":
    """The incremental text of each prompt of *history*; None without a tokenizer."""
    if parts.tokenizer is None:
        return None
    # Imported late: not needed for ids alone.
    from ..results.row_text import row_texts

    finishes, skip = parts.stop_condition.finishes, parts.skip_special_tokens
    return row_texts(parts.tokenizer, skip, finishes, history, parts.echo_prompt)
