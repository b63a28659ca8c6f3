"""Hugging Face's stopping criteria among our stop conditions."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation.stopping_criteria import ConfidenceCriteria

from decodekit.decoding import Finish, Generator, History, MaxNewTokens, stop_from_transformers
from decodekit.decoding.scores import Scores
from decodekit.neuron_backend import StaticDecoder
from decodekit.speculation import PromptLookup, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder, last_token

PROMPTS = [[3, 9, 4, 3, 9], [7], [11, 5, 2, 60, 8, 8, 1]]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def letters() -> Any:
    """A tokenizer of 61 letters."""
    backend = Tokenizer(models.WordLevel({c: i for i, c in enumerate(LETTERS[:61])}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


class Repeats(StoppingCriteria):
    """A custom criterion: the newest token occurred before."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return (input_ids[:, :-1] == input_ids[:, -1:]).any(dim=-1)


CRITERIA: dict[str, Callable[[], Any]] = {
    "max-length": lambda: MaxLengthCriteria(12),
    "max-time": lambda: MaxTimeCriteria(1e6),
    "no-time": lambda: MaxTimeCriteria(0.0, initial_timestamp=0.0),
    "strings": lambda: StopStringCriteria(letters(), ["a", "B", "x"]),
    "end-of-sequence": lambda: EosTokenCriteria([5, 6, 7, 8, 9, 10]),
    "confidence": lambda: ConfidenceCriteria(0.3),
    "their-own": Repeats,
    "lambda": lambda: lambda ids, scores, **options: ids.shape[1] > 9 and bool(ids[0, -1] % 2),
}


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_equals_generate(name: str, prompt: list[int], tiny_model: Callable[..., PreTrainedModel]) -> None:
    """Unchanged, the text is that of ``transformers.generate``, with a draft as well."""
    model, confidence = tiny_model("llama"), name == "confidence"
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)).long(),
        do_sample=False,
        max_new_tokens=30,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([CRITERIA[name]()]),
        return_dict_in_generate=True,
        output_scores=confidence,
    )
    expected = output.sequences[0, len(prompt) :].tolist()
    decoder = StaticDecoder(model, max_length=64, widths=(1, 5, 16))
    stop = stop_from_transformers(CRITERIA[name](), scores=confidence) | MaxNewTokens(30)
    for result in (
        Generator(decoder, stop=stop)(prompt),
        SpeculativeGenerator(decoder, PromptLookup(), stop=stop)(prompt),
    ):
        assert [expected] == result.ids
        assert ("stopping_criteria" if len(expected) < 30 else "max_new_tokens") == result.finishes[0].reason


def test_rows_end_one_by_one() -> None:
    """Each with its own tokens; the finish has the index of the criterion."""
    decoder = ScriptedDecoder(torch.eye(10).roll(1, dims=1), 3, line=last_token)
    stop = stop_from_transformers(
        StoppingCriteriaList([MaxLengthCriteria(6), EosTokenCriteria(9), lambda ids, scores: ids[0, -1] == 2])
    )
    result = Generator(decoder, stop=stop)([[0, 0, 3], [7], [5, 0]])

    assert [[4, 5, 6], [8, 9], [1, 2]] == result.ids
    assert [Finish("stopping_criteria", number) for number in (0, 1, 2)] == result.finishes


def test_scores_are_given_where_they_are_asked_for() -> None:
    """None as ``generate`` has it; or the processed logits of the newest token, a copy."""
    seen: list[Any] = []

    def note(ids: torch.Tensor, scores: Any) -> bool:
        seen.append(scores)
        ids.fill_(0)
        if scores is not None:
            assert [(1, 10)] == [tuple(one.shape) for one in scores]
            seen[-1] = int(scores[-1].argmax())
            scores[-1].fill_(0)
        return False

    generator = ScriptedDecoder(torch.eye(10).roll(1, dims=1), line=last_token)
    for scores, expected in ((False, [None, None]), (True, [5, 6])):
        seen.clear()
        stop = stop_from_transformers(note, scores=scores) | MaxNewTokens(2)

        assert [[5, 6]] == Generator(generator, stop=stop)([4]).ids
        assert expected == seen


def test_what_they_write_has_no_effect() -> None:
    """They have tokens and scores of their own."""

    def write(ids: torch.Tensor, scores: Any) -> bool:
        ids.fill_(7)
        scores[-1].fill_(7)
        return False

    ids, logits = torch.zeros(1, 1, 4, dtype=torch.int64), torch.zeros(1, 1, 5)
    history = History(ids, torch.tensor([[3]]), torch.tensor([1]), torch.tensor([0]))

    assert [[0]] == stop_from_transformers(write, scores=True)(Scores(lambda: logits), history).tolist()
    assert 0 == int(ids.sum()) + int(logits.sum())


class EncoderExhaustedCriteria(StoppingCriteria):
    """By the name of one that transformers has for speech."""


class PocketTTSEosThresholdCriteria(StoppingCriteria):
    """Another."""


@pytest.mark.parametrize("kind", [EncoderExhaustedCriteria, PocketTTSEosThresholdCriteria])
def test_refuses_those_that_know_more(kind: Any) -> None:
    """By name, with the reason, in a list too."""
    for criteria in (kind(), [Repeats(), kind()], StoppingCriteriaList([kind()])):
        with pytest.raises(ValueError, match=r"functions of .* scores: got .*; it (depends|counts)"):
            stop_from_transformers(criteria)


def test_confidence_needs_scores() -> None:
    """Said at once, not when it is called."""
    with pytest.raises(ValueError, match=r"'scores' must be True for .*ConfidenceCriteria"):
        stop_from_transformers([Repeats(), ConfidenceCriteria(0.3)])


@pytest.mark.parametrize("criteria", [None, 3, [], [3], Repeats, [Repeats]])
def test_must_be_callable(criteria: Any) -> None:
    """A class or nothing is a mistake."""
    with pytest.raises(TypeError, match="'criteria' must be callable"):
        stop_from_transformers(criteria)


@pytest.mark.parametrize("said", [1, None, torch.ones(2).bool(), torch.ones(1)])
def test_must_give_a_bool(said: Any) -> None:
    """Or one for its one row."""
    generator = Generator(
        ScriptedDecoder(torch.eye(10).roll(1, dims=1), line=last_token),
        stop=stop_from_transformers(lambda ids, scores: said),
    )
    with pytest.raises(TypeError, match=r"a criterion must give a bool, or \[1\] of them: got"):
        generator([4])
