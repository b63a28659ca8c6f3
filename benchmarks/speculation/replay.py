"""
Speculation on a recorded text, without the model.

Under exact match the text does not depend on the drafts. So what any drafter and any length policy would do
follows from the text alone, and a run's time from the seconds of the forwards.
"""

import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import cast

import attrs
import torch

from ...decoding import History, SpeculationStep
from ...decoding.optional_protocols import ForeseesTokens, GivesEvidence, PausesDrafts, WeighsEvidence
from ...decoding.protocols import Drafter, DraftLength, SamplesTokens

_NO_SAMPLING = cast(SamplesTokens, None)
"""A lookup samples nothing."""


@attrs.frozen
class RecordedText:
    """A prompt and what plain decoding generated after it."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]

    def first(self, count: int) -> "RecordedText":
        """The same with at most *count* new tokens."""
        return RecordedText(self.prompt, self.ids[:count])


@attrs.frozen
class RecordedDraft:
    """What a drafter proposed at one position."""

    drafted: int
    """Draft tokens."""

    agreed: int
    """Leading draft tokens that are those of the text."""

    evidence: int | None
    """Its evidence for them; None if the drafter gives none."""

    seconds: float
    """Time in the drafter's proposal."""

    evidence_seconds: float
    """Time in its evidence."""

    foresees: bool = False
    """Whether the drafter tells the first token with its evidence."""


@attrs.frozen
class Replay:
    """One run over a recorded text."""

    seconds: float
    """From the first token to the last."""

    steps: tuple[SpeculationStep, ...]


def recorded_drafts(drafter: Drafter, text: RecordedText, most: int) -> list[RecordedDraft]:
    """
    The drafts of up to *most* tokens after each token of *text* but the last.

    Args:
        drafter: A function of the history alone, such as a lookup; its shorter drafts begin its longer.

        text: At least one new token.

        most: The draft length.
    """
    tokens, before = text.prompt + text.ids, len(text.prompt)
    ids = torch.full((1, 1, len(tokens) + most + 1), 0)
    ids[0, 0, : len(tokens)] = torch.tensor(tokens)
    prompt, stream, budget = torch.tensor([before]), torch.tensor([0]), torch.tensor([most])
    drafts = []
    for length in range(before + 1, len(tokens)):
        history = History(ids, torch.tensor([[length]]), prompt, stream)
        start, evidence = time.perf_counter(), None
        if isinstance(drafter, ForeseesTokens):
            evidence = int(drafter.foresee(history, budget)[0])
        elif isinstance(drafter, GivesEvidence):
            evidence = int(drafter.evidence(history, budget)[0])
        between = time.perf_counter()
        proposed = drafter.propose(history, budget, _NO_SAMPLING)
        end = time.perf_counter()
        draft = list(itertools.takewhile(lambda token: token >= 0, proposed.ids[0].tolist()))
        pairs = zip(draft, tokens[length:], strict=False)
        agreed = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        foresees = isinstance(drafter, ForeseesTokens)
        drafts.append(RecordedDraft(len(draft), agreed, evidence, end - between, between - start, foresees))
    return _typical(drafts)


def _typical(drafts: list[RecordedDraft]) -> list[RecordedDraft]:
    """The same with median times, but for the first, in which a drafter may index the prompt."""
    if len(drafts) < 2:
        return drafts
    seconds = statistics.median(draft.seconds for draft in drafts[1:])
    evidence = statistics.median(draft.evidence_seconds for draft in drafts[1:])
    return [
        drafts[0],
        *(attrs.evolve(draft, seconds=seconds, evidence_seconds=evidence) for draft in drafts[1:]),
    ]


def replay(
    length: int | DraftLength,
    drafts: Sequence[RecordedDraft],
    forward_seconds: Mapping[int, float],
    other_seconds: float = 0.0,
) -> Replay:
    """
    A run of one row with these *drafts*.

    Args:
        length: The draft length, or a policy; it learns.

        drafts: By position, of at least the policy's largest length (:func:`recorded_drafts`).

        forward_seconds: Seconds of a forward by the most tokens that it feeds, ascending.

        other_seconds: Seconds of a step outside forward and drafter.
    """
    steps, position = list[SpeculationStep](), 0
    plain = SpeculationStep(0, (0,), (0,), 0.0, min(forward_seconds.items())[1], other_seconds)
    while position < len(drafts):
        step = plain
        # The last token is the target's own.
        room = len(drafts) - position - 1
        if room and not _pauses(length, drafts[position]):
            step = _asked(length, drafts[position], room, forward_seconds, other_seconds)
            if not isinstance(length, int):
                length.learn(step)
        steps.append(step)
        position += 1 + step.accepted[0]
    seconds = sum(step.draft_seconds + step.target_seconds + step.other_seconds for step in steps)
    return Replay(seconds, tuple(steps))


def _weighs(length: int | DraftLength, draft: RecordedDraft) -> bool:
    return draft.evidence is not None and isinstance(length, WeighsEvidence)


def _pauses(length: int | DraftLength, draft: RecordedDraft) -> bool:
    """Whether the policy does without the drafter in this step."""
    return _weighs(length, draft) and isinstance(length, PausesDrafts) and not length.wants_evidence()


def _asked(
    length: int | DraftLength,
    draft: RecordedDraft,
    room: int,
    forward_seconds: Mapping[int, float],
    other_seconds: float,
) -> SpeculationStep:
    """
    A step in which the drafter is asked for evidence if *length* weighs it, and for the draft chosen.

    At most *room* tokens are drafted.
    """
    evidence = (cast(int, draft.evidence),) if _weighs(length, draft) else None
    if isinstance(length, int):
        allowed = length
    else:
        allowed = length(1) if evidence is None else cast(WeighsEvidence, length).weigh(evidence)[0]
    allowed = min(allowed, room)
    drafting = (draft.seconds if allowed else 0.0) + (0.0 if evidence is None else draft.evidence_seconds)
    drafted, accepted = min(allowed, draft.drafted), min(allowed, draft.agreed)
    return SpeculationStep(
        allowed,
        (drafted,),
        (accepted,),
        drafting,
        next(each for most, each in forward_seconds.items() if most > drafted),
        other_seconds,
        evidence,
        foreseen=(draft.agreed > 0,) if evidence is not None and draft.foresees else None,
    )
