"""Processors in ``transformers.generate``."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.decoding.history import History
from decodekit.decoding.sampling import noise
from decodekit.neuron_backend import StaticDecoder
from decodekit.processors import (
    XTC,
    BadWords,
    FrequencyPenalty,
    MinNewTokens,
    NoRepeatNgram,
    RepetitionPenalty,
    Temperature,
    ThinkingBudget,
    TopK,
    to_transformers,
)

Models = Callable[..., PreTrainedModel]
PAD = 0
CHAIN = RepetitionPenalty(1.3) | NoRepeatNgram(3) | MinNewTokens(12, [13])
THEIRS = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 12, "eos_token_id": 13}
PROMPTS = [[11, 5, 2, 60, 8, 8, 1], [7], [3, 9, 4, 3]]


@attrs.define(eq=False)
class Recorder:
    """Records the histories it is called with."""

    histories: list[History] = attrs.field(factory=list)

    def __call__(self, logits: Tensor, history: History) -> Tensor:
        """Leave the logits as they are."""
        self.histories.append(history)
        return logits

    @property
    def prompts(self) -> list[list[int]]:
        """The prompts' lengths, a call each."""
        return [history.prompt.tolist() for history in self.histories]


def padded(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Left-padded ids, and their mask."""
    longest = max(map(len, prompts))
    ids = [[PAD] * (longest - len(prompt)) + prompt for prompt in prompts]
    mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids), torch.tensor(mask)


def generate(model: PreTrainedModel, prompts: list[list[int]], **options: Any) -> Any:
    """Greedy tokens and processed scores of ``generate``."""
    ids, mask = padded(prompts)
    settings = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": PAD} | options
    return model.generate(
        ids, attention_mask=mask, output_scores=True, return_dict_in_generate=True, **settings
    )


class TestInGenerate:
    def test_gives_what_their_own_processors_give(self, tiny_model: Models) -> None:
        """The same tokens, from equal scores at every step."""
        model = tiny_model("llama")
        expected = generate(model, PROMPTS[:1], **THEIRS)

        ours = generate(model, PROMPTS[:1], eos_token_id=13, logits_processor=[to_transformers(CHAIN)])

        assert torch.equal(expected.sequences, ours.sequences)
        torch.testing.assert_close(
            torch.stack(expected.scores), torch.stack(ours.scores), rtol=0.0, atol=1e-6
        )

    def test_a_prompt_of_embeddings_has_no_ids(self, tiny_model: Models) -> None:
        """The first call has none; a mask is that of the embeddings."""
        model = tiny_model("llama")
        ids, mask = padded(PROMPTS[:2])
        embedded = model.get_input_embeddings()(ids)
        chain = RepetitionPenalty(1.3) | NoRepeatNgram(2) | BadWords([[5, 6]]) | FrequencyPenalty(0.5)
        chain |= ThinkingBudget(3, 7, 8)
        options = {
            "inputs_embeds": embedded,
            "attention_mask": mask,
            "max_new_tokens": 12,
            "do_sample": False,
        }

        for known in ({}, {"attention_mask": mask}):
            ours = model.generate(**options, logits_processor=[to_transformers(chain, **known)])
            assert (2, 12) == tuple(ours.shape)
        theirs = [
            transformers.RepetitionPenaltyLogitsProcessor(1.3),
            transformers.NoRepeatNGramLogitsProcessor(2),
        ]
        few = to_transformers(RepetitionPenalty(1.3) | NoRepeatNgram(2))
        expected = model.generate(**options, logits_processor=theirs)
        assert torch.equal(expected, model.generate(**options, logits_processor=[few]))

    def test_gives_what_the_generator_gives(self, tiny_model: Models) -> None:
        """Ragged rows, padded there and not here."""
        model = tiny_model("llama")
        decoder = StaticDecoder(model, batch_size=3, max_length=64, widths=(1, 16))
        expected = Generator(decoder, processors=CHAIN, stop=MaxNewTokens(24))(PROMPTS).ids

        for known in ({"pad_token_id": PAD}, {"attention_mask": padded(PROMPTS)[1]}):
            bridge = to_transformers(CHAIN, **known)
            sequences = generate(model, PROMPTS, logits_processor=[bridge]).sequences

            assert expected == sequences[:, 7:].tolist()

    def test_tosses_the_coins_that_the_generator_tosses(self, tiny_model: Models) -> None:
        """Streams, seed and positions are the same here and there."""
        model, chain = tiny_model("llama"), XTC(0.5, 0.05)
        decoder = StaticDecoder(model, batch_size=3, max_length=64, widths=(1, 16))
        expected = Generator(decoder, processors=chain, stop=MaxNewTokens(24))(
            PROMPTS, random_streams=[5, 0, 2]
        ).ids
        bridge = to_transformers(chain, pad_token_id=PAD, random_streams=[5, 0, 2])

        sequences = generate(model, PROMPTS, logits_processor=[bridge]).sequences

        assert expected == sequences[:, 7:].tolist()
        assert expected != generate(model, PROMPTS).sequences[:, 7:].tolist()

    def test_a_row_does_not_depend_on_the_padding_beside_it(self, tiny_model: Models) -> None:
        """Each row of a ragged batch gets what it gets alone."""
        model, chain = tiny_model("llama"), CHAIN | FrequencyPenalty(0.7)
        bridge = to_transformers(chain, pad_token_id=PAD)
        together = generate(model, PROMPTS, logits_processor=[bridge]).sequences[:, 7:]

        for row, prompt in enumerate(PROMPTS):
            alone = generate(model, [prompt], logits_processor=[to_transformers(chain)]).sequences

            assert alone[0, len(prompt) :].tolist() == together[row].tolist()

    def test_serves_one_run_after_another(self, tiny_model: Models) -> None:
        """What a run left behind does not show in the next, be its prompt shorter, longer or the same."""
        model, chain = tiny_model("llama"), FrequencyPenalty(2.0) | MinNewTokens(3, range(40))
        bridge = to_transformers(chain)
        first = generate(model, PROMPTS[:1], logits_processor=[bridge]).sequences[0].tolist()

        for prompt in (PROMPTS[1], PROMPTS[0], [*first, 5], [*PROMPTS[0], 9, 9], PROMPTS[0][:3]):
            expected = generate(model, [prompt], logits_processor=[to_transformers(chain)])
            again = generate(model, [prompt], logits_processor=[bridge])

            assert torch.equal(expected.sequences, again.sequences)

    def test_works_in_assisted_generation(self, tiny_model: Models) -> None:
        """There a run's calls go back where drafted tokens were wrong, and the prompt stays the prompt."""
        model, chain = tiny_model("llama"), CHAIN | FrequencyPenalty(0.7)
        expected = generate(model, PROMPTS[:1], logits_processor=[to_transformers(chain)]).sequences

        assisted = generate(
            model, PROMPTS[:1], logits_processor=[to_transformers(chain)], prompt_lookup_num_tokens=3
        ).sequences

        assert expected.tolist() == assisted.tolist()

    def test_runs_before_their_temperature_and_filters(self, tiny_model: Models) -> None:
        """Two equal runs under one seed of torch: filters of theirs see our scores."""
        bridge = to_transformers(CHAIN)
        options = {"do_sample": True, "temperature": 0.5, "top_k": 3, "logits_processor": [bridge]}

        scores = torch.stack(generate(tiny_model("llama"), PROMPTS[:1], **options).scores)

        assert 3 == (scores > -torch.inf).sum(dim=-1).amax()


class TestHistory:
    def test_is_the_row_without_its_padding(self) -> None:
        """Rows of 3, 1 and no tokens; the prompt is what the first call shows."""
        recorder = Recorder()
        bridge = to_transformers(recorder, pad_token_id=0, seed=5, random_streams=[4, 4, 9])

        bridge(torch.tensor([[6, 0, 7], [0, 0, 8], [0, 0, 0]]), torch.zeros(3, 5))
        bridge(torch.tensor([[6, 0, 7, 1], [0, 0, 8, 2], [0, 0, 0, 3]]), torch.zeros(3, 5))

        history = recorder.histories[1]
        rows = [ids[0, :n].tolist() for ids, n in zip(history.ids, history.length[:, 0], strict=True)]
        assert [[6, 0, 7, 1], [8, 2], [3]] == rows
        assert [[3, 1, 0], [3, 1, 0]] == recorder.prompts
        assert noise.random_streams(torch.tensor([4, 4, 9]), 5).tolist() == history.random_stream.tolist()

    def test_knows_padding_from_a_token_by_the_mask(self) -> None:
        """A prompt that begins with the padding's token keeps it."""
        recorder = Recorder()

        to_transformers(recorder, attention_mask=[[0, 1, 1]])(torch.tensor([[0, 0, 7, 4]]), torch.zeros(1, 9))

        assert [0, 7, 4] == recorder.histories[0].ids[0, 0, : recorder.histories[0].length[0, 0]].tolist()

    def test_a_given_prompt_length_needs_no_memory(self) -> None:
        """Calls in any order: of a text, of its beginning, of another."""
        recorder = Recorder()
        bridge = to_transformers(recorder, prompt_length=2)

        for ids in ([4, 5, 6, 7], [4, 5], [9, 9, 9], [4, 5, 6]):
            bridge(torch.tensor([ids]), torch.zeros(1, 10))

        assert [[2]] * 4 == recorder.prompts

    @pytest.mark.parametrize(
        ("calls", "expected"),
        [
            pytest.param([[1, 2], [1, 2, 3], [1, 2, 3, 4]], [2, 2, 2], id="one-run"),
            pytest.param([[1, 2], [1, 2, 3], [1, 2, 9], [1, 2, 3, 4]], [2, 2, 2, 2], id="a-draft-left-again"),
            pytest.param([[1, 2], [1, 2, 3], [1]], [2, 2, 1], id="shorter"),
            pytest.param([[1, 2], [1, 2, 3], [5, 2, 3, 4]], [2, 2, 4], id="another-prompt"),
            pytest.param([[1, 2], [1, 2, 3], [1, 2, 3, 4, 5]], [2, 2, 5], id="two-more"),
        ],
    )
    def test_when_a_run_begins(self, calls: list[list[int]], expected: list[int]) -> None:
        """A run's calls begin with its prompt and grow by one token at most."""
        recorder = Recorder()
        bridge = to_transformers(recorder)

        for ids in calls:
            bridge(torch.tensor([ids]), torch.zeros(1, 10))

        assert [[n] for n in expected] == recorder.prompts

    def test_what_a_caller_does_to_the_ids_later_begins_no_run(self) -> None:
        """The prompt is kept as a copy."""
        recorder, ids = Recorder(), torch.tensor([[1, 2]])
        bridge = to_transformers(recorder)
        bridge(ids, torch.zeros(1, 10))
        ids.zero_()

        bridge(torch.tensor([[1, 2, 3]]), torch.zeros(1, 10))

        assert [[2], [2]] == recorder.prompts


class TestObject:
    def test_is_one_of_theirs(self) -> None:
        """They ask for the type, and for whether their own engine may use it."""
        bridge = to_transformers(TopK(2) | Temperature(0.5))

        assert isinstance(bridge, transformers.LogitsProcessor)
        assert bridge.supports_continuous_batching is False

    def test_two_equal_ones_stay_two(self) -> None:
        """They merge processors with ``in``: equality of values would drop the second."""
        assert to_transformers(TopK(2)) != to_transformers(TopK(2))

    def test_leaves_the_scores_as_they_were(self) -> None:
        """Theirs may write into the scores; ours do not."""
        scores = torch.tensor([[3.0, 2.0, 1.0]])

        processed = to_transformers(TopK(1))(torch.tensor([[0]]), scores)

        assert [[3.0, -torch.inf, -torch.inf]] == processed.tolist()
        assert [[3.0, 2.0, 1.0]] == scores.tolist()

    def test_the_package_does_not_import_transformers(self) -> None:
        """It is imported on first use."""
        check = "import sys, decodekit.processors; assert 'transformers' not in sys.modules"

        subprocess.run([sys.executable, "-c", check], check=True)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"pad_token_id": 0, "attention_mask": [[1]]}, ValueError, "both say what is padding"),
            ({"attention_mask": [[1, 0]]}, ValueError, "zeros on the left only"),
            ({"attention_mask": [1, 0]}, ValueError, "must be 2-D"),
            ({"prompt_length": -1}, ValueError, "'prompt_length' must be >= 0"),
            ({"prompt_length": True}, TypeError, "'prompt_length' must be a whole number: got True"),
            ({"pad_token_id": "<pad>"}, TypeError, "'pad_token_id' must be a whole number: got '<pad>'"),
            ({"seed": 0.5}, TypeError, "'seed' must be a whole number: got 0.5"),
        ],
    )
    def test_refuses(self, options: dict[str, Any], error: type[Exception], message: str) -> None:
        """What is wrong is said at once."""
        with pytest.raises(error, match=message):
            to_transformers(TopK(1), **options)

    @pytest.mark.parametrize("options", [{"random_streams": [1, 2]}, {"attention_mask": [[1], [1]]}])
    def test_refuses_another_number_of_rows(self, options: dict[str, Any]) -> None:
        """What is given per row fits the rows."""
        with pytest.raises(ValueError, match="must have one value per row: got 2 for 1 rows"):
            to_transformers(TopK(1), **options)(torch.tensor([[3]]), torch.zeros(1, 5))
