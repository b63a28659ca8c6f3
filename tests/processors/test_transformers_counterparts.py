"""Counterparts of every transformers logits processor, or the reason for none."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from transformers.generation import logits_process as hf

from decodekit import processors
from decodekit.processors import ForcedFirstToken, RemoveInvalid, from_transformers
from decodekit.processors.interop.transformers_import import _REFUSED

from .by_hand import after, stays
from .test_catalogue import CATALOGUE

OURS = {
    "EncoderNoRepeatNGramLogitsProcessor": processors.EncoderNoRepeatNgram,
    "EncoderRepetitionPenaltyLogitsProcessor": processors.EncoderRepetitionPenalty,
    "EpsilonLogitsWarper": processors.EpsilonCutoff,
    "EtaLogitsWarper": processors.EtaCutoff,
    "ExponentialDecayLengthPenalty": processors.ExponentialLengthDecay,
    "ForcedBOSTokenLogitsProcessor": processors.ForcedFirstToken,
    "ForcedEOSTokenLogitsProcessor": processors.ForcedLastToken,
    "InfNanRemoveLogitsProcessor": processors.RemoveInvalid,
    "LogitNormalization": processors.Renormalise,
    "MinLengthLogitsProcessor": processors.MinLength,
    "MinNewTokensLengthLogitsProcessor": processors.MinNewTokens,
    "MinPLogitsWarper": processors.MinP,
    "NoBadWordsLogitsProcessor": processors.BadWords,
    "NoRepeatNGramLogitsProcessor": processors.NoRepeatNgram,
    "PrefixConstrainedLogitsProcessor": processors.PrefixFunction,
    "RepetitionPenaltyLogitsProcessor": processors.RepetitionPenalty,
    "SequenceBiasLogitsProcessor": processors.SequenceBias,
    "SuppressTokensAtBeginLogitsProcessor": processors.SuppressFirst,
    "SuppressTokensLogitsProcessor": processors.SuppressTokens,
    "SynthIDTextWatermarkLogitsProcessor": processors.SynthIDWatermark,
    "TemperatureLogitsWarper": processors.Temperature,
    "TopHLogitsWarper": processors.TopH,
    "TopKLogitsWarper": processors.TopK,
    "TopPLogitsWarper": processors.TopP,
    "TypicalLogitsWarper": processors.Typical,
    "WatermarkLogitsProcessor": processors.KirchenbauerWatermark,
}
"""Class of transformers to class of decodekit."""

COMPARED_HERE = {"ForcedBOSTokenLogitsProcessor", "InfNanRemoveLogitsProcessor"}
"""Compared below instead of in the catalogue, since ours differ by intent elsewhere."""

REFUSED = {
    "ClassifierFreeGuidanceLogitsProcessor",
    "DiaClassifierFreeGuidanceLogitsProcessor",
    "DiaEOSChannelFilterLogitsProcessor",
    "DiaEOSDelayPatternLogitsProcessor",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor",
    "WhisperNoSpeechDetection",
}
"""No counterpart, and refused by ``from_transformers``."""

NOT_TEXT = {
    "AlternatingCodebooksLogitsProcessor": "audio of Bark: two codebooks take turns in one vocabulary",
    "BarkEosPrioritizerLogitsProcessor": "audio of Bark: an end that is likely enough is forced",
    "WhisperTimeStampLogitsProcessor": "speech to text: time stamps come in pairs and ascend",
}
"""No counterpart, with the reason."""


def theirs() -> list[str]:
    """All logits processors of transformers."""
    return [
        name
        for name, kind in inspect.getmembers(hf, inspect.isclass)
        if issubclass(kind, hf.LogitsProcessor) and kind is not hf.LogitsProcessor
    ]


def test_each_is_in_exactly_one_table() -> None:
    """Detects classes that a new version adds, renames or removes."""
    assert theirs() == sorted([*OURS, *REFUSED, *NOT_TEXT])


def test_each_of_ours_is_compared_with_its_own() -> None:
    """In a catalogue entry, or below."""
    entries = Path(__file__).parent.glob("entries/*.py")
    compared = {name for entry in entries for name in re.findall(r"\bhf\.(\w+)", entry.read_text("utf-8"))}

    assert OURS.keys() == (compared | COMPARED_HERE) & set(theirs())
    assert set() == compared & COMPARED_HERE


def test_each_of_ours_is_in_the_catalogue() -> None:
    """So that the properties of every processor are tested for these."""
    made = {type(entry.make(entry.example)) for entry in CATALOGUE.values()}

    assert set() == set(OURS.values()) - made


@pytest.mark.parametrize("name", sorted(_REFUSED))
def test_refused_by_name(name: str) -> None:
    """Whatever its arguments."""
    kind = getattr(hf, name)

    with pytest.raises(ValueError, match=rf"must be a function of the ids and the scores: got .*{name}"):
        from_transformers(kind.__new__(kind))


def test_refused_is_what_has_no_counterpart() -> None:
    """SynthID has a counterpart, but its class is refused too."""
    assert REFUSED | {"SynthIDTextWatermarkLogitsProcessor"} == _REFUSED.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_removes_what_theirs_removes(dtype: torch.dtype) -> None:
    """NaN and +inf; -inf differs by intent, since theirs makes it finite."""
    inf, nan = float("inf"), float("nan")
    rows = torch.tensor([[nan, -1.0, inf, 2.0], [nan, nan, nan, nan], [inf, inf, -3.0, 0.5]], dtype=dtype)

    expected = hf.InfNanRemoveLogitsProcessor()(None, rows)

    assert torch.equal(expected, RemoveInvalid(nan=0.0)(rows[:, None], after([]))[:, 0])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_forces_what_theirs_forces(length: int) -> None:
    """After a start of one token, as of an encoder-decoder: the same token is left, and later all are."""
    ids, logits = [4, 1, 1][:length], [0.5, -1.0, 2.0, 0.0, 1.0]
    forced = hf.ForcedBOSTokenLogitsProcessor(3)(torch.tensor([ids]), torch.tensor([logits]))

    expected = (forced[0] > -torch.inf).nonzero().flatten().tolist()

    assert expected == stays(ForcedFirstToken(3), logits, after(ids, prompt=1))
