"""Hugging Face's processors as processors of decodekit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedModel
from transformers.generation import logits_process as hf

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.decoding.history import History
from decodekit.neuron_backend import StaticDecoder
from decodekit.processors import Chain, NoRepeatNgram, RepetitionPenalty, Temperature, from_transformers
from decodekit.speculation import PromptLookup, SpeculativeGenerator

from ...strategies import examples, windows
from ..by_hand import after, run

PROMPTS = [[3, 9, 4, 3, 9, 4, 3, 9], [7, 7]]


def theirs() -> LogitsProcessorList:
    """A list of two that look at the ids."""
    return LogitsProcessorList([hf.RepetitionPenaltyLogitsProcessor(1.3), hf.NoRepeatNGramLogitsProcessor(2)])


class TestFromTransformers:
    @settings(deadline=None, max_examples=examples(40))
    @given(window=windows())
    def test_equals_ours_in_every_column(self, window: tuple[Tensor, History]) -> None:
        """Theirs, column by column, is what ours make of the window."""
        logits, history = window
        # An empty text is none to them.
        length = history.length.clamp(min=1)
        # Theirs know no ids without a logit.
        ids = history.ids.clamp(0, logits.shape[-1] - 1)
        history = History(ids, length, history.prompt, history.random_stream)
        expected = (RepetitionPenalty(1.3) | NoRepeatNgram(2))(logits, history)

        processed = from_transformers(theirs())(logits, history)

        torch.testing.assert_close(expected, processed, rtol=0.0, atol=1e-6)
        assert logits.dtype == processed.dtype

    @pytest.mark.parametrize("sampler", [None, Sample(seed=3)], ids=["greedy", "sample"])
    def test_speculation_gives_what_plain_decoding_gives(
        self, sampler: Any, tiny_model: Callable[..., PreTrainedModel]
    ) -> None:
        """Each drafted position is processed with its own prefix."""
        decoder = StaticDecoder(
            tiny_model("llama", torch.float64), batch_size=2, max_length=64, widths=(1, 5)
        )
        parts: dict[str, Any] = {"processors": from_transformers(theirs()), "stop": MaxNewTokens(30)}
        if sampler is not None:
            parts["sampler"] = sampler
        plain = Generator(decoder, **parts)(PROMPTS)

        fast = SpeculativeGenerator(decoder, PromptLookup(), num_draft_tokens=4, **parts)(PROMPTS)

        assert plain.ids == fast.ids
        assert sum(fast.statistics.drafted) > 0

    def test_gives_what_generate_gives(self, tiny_model: Callable[..., PreTrainedModel]) -> None:
        """Their list here and their list there."""
        model = tiny_model("llama")
        expected = model.generate(
            torch.tensor(PROMPTS[:1]),
            logits_processor=theirs(),
            do_sample=False,
            max_new_tokens=30,
            pad_token_id=0,
        )
        decoder = StaticDecoder(model, max_length=64, widths=(1, 5))

        ids = Generator(decoder, processors=from_transformers(theirs()), stop=MaxNewTokens(30))(
            PROMPTS[0]
        ).ids

        assert expected[0, 8:].tolist() == ids[0]

    def test_cannot_write_into_our_tensors(self) -> None:
        """What a processor does to its arguments stays with it."""

        def vandal(input_ids: Tensor, scores: Tensor) -> Tensor:
            input_ids.zero_()
            scores[:] = 5.0
            return scores

        logits, history = torch.tensor([[[1.0, 2.0]]]), after([1, 1])
        processed = from_transformers(vandal)(logits, history)

        assert [[[5.0, 5.0]]] == processed.tolist()
        assert [[[1.0, 2.0]]] == logits.tolist()
        assert [1, 1, -1] == history.ids.flatten().tolist()

    def test_takes_a_function_and_composes(self) -> None:
        """It is a processor as any other."""
        chain = Temperature(0.5) | from_transformers(lambda input_ids, scores: scores + input_ids.shape[1])

        assert isinstance(chain, Chain)
        assert [5.0, 7.0] == run(chain, [1.0, 2.0], after([4, 4, 4]))

    @pytest.mark.parametrize("given", [3, hf.NoRepeatNGramLogitsProcessor])
    def test_refuses_what_is_not_callable_as_a_processor(self, given: object) -> None:
        """An instance is wanted."""
        with pytest.raises(TypeError, match="'processor' must be callable as processor"):
            from_transformers(given)  # type: ignore[arg-type]

    def test_refuses_what_depends_on_earlier_calls(self) -> None:
        """Also within a list, and what derives from it."""

        class Mine(hf.ClassifierFreeGuidanceLogitsProcessor):  # type: ignore[misc]
            pass

        with pytest.raises(ValueError, match="it takes two rows for one"):
            from_transformers(LogitsProcessorList([*theirs(), Mine(2.0)]))

    def test_refuses_scores_of_another_shape(self) -> None:
        """A processor that answers for more rows than it was asked about."""
        with pytest.raises(ValueError, match=r"must give scores \[1, 2\]: got \[2, 2\]"):
            run(from_transformers(lambda ids, scores: scores.repeat(2, 1)), [1.0, 2.0], after([1]))


def test_every_refused_name_is_one_of_theirs() -> None:
    """A renamed class would slip through."""
    from decodekit.processors.interop.transformers_import import _REFUSED

    assert [] == [name for name in _REFUSED if not hasattr(hf, name)]
