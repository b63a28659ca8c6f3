"""Drafting with a model of another vocabulary, on the common tokens."""

import copy
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from decodekit.decoding import (
    EndOfSequence,
    Generator,
    Greedy,
    History,
    MaxNewTokens,
    Sample,
    SamplingPipeline,
)
from decodekit.neuron_backend import StaticDecoder
from decodekit.processors import AllowedTokens, RepetitionPenalty, Temperature, TopP
from decodekit.speculation import CommonTokens, DraftModel, RetokenizedDraft, SpeculativeGenerator
from decodekit.testing import ScriptedDecoder

from .tokenizers_for_drafts import KINDS, TEXT, permuted, tokenizer, writer

SHAPE: dict[str, Any] = {"max_length": 128, "widths": (1, 5, 32), "scored_width": 5}


def random_decoder(kind: str, seed: int, rows: int = 2, **changes: Any) -> ScriptedDecoder:
    """A random decoder over a tokenizer's ids, plus five ids without a token."""
    generator = torch.Generator().manual_seed(seed)
    table = 3 * torch.randn(61, len(tokenizer(kind)) + 5, generator=generator)
    return ScriptedDecoder(table, rows, **{**SHAPE, **changes})


def model(vocab: int) -> PreTrainedModel:
    """A tiny model with random weights in float64."""
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).double().eval()


def renumbered(original: PreTrainedModel, new: torch.Tensor) -> PreTrainedModel:
    """The same model behind a permuted vocabulary."""
    other = copy.deepcopy(original)
    with torch.no_grad():
        other.model.embed_tokens.weight[new] = original.model.embed_tokens.weight
        other.lm_head.weight[new] = original.lm_head.weight
    return other


class TestTheSameModelBehindAPermutedVocabulary:
    """Only the ids differ, so acceptance must be equal."""

    @pytest.mark.parametrize(
        "parts",
        [
            {"sampler": Greedy()},
            {"sampler": Sample(3), "processors": Temperature(0.8)},
            {"sampler": Sample(4), "processors": RepetitionPenalty(1.2) | Temperature(0.8) | TopP(0.9)},
        ],
        ids=["greedy", "drawn", "drawn-after-a-chain"],
    )
    def test_is_always_right(self, parts: dict[str, Any]) -> None:
        """τ = k + 1, sampled or greedy, in a ragged batch."""
        mixed, new = permuted("bytes")
        target = StaticDecoder(model(len(new)), batch_size=2, **SHAPE)
        own = StaticDecoder(renumbered(target.step.model, new), batch_size=2, **SHAPE)
        draft = CommonTokens(own, mixed, tokenizer("bytes"), len(new))
        prompts = [tokenizer("bytes").encode(text) for text in ("The quick", "As much wood as it")]
        parts = {**parts, "stop": MaxNewTokens(41)}
        plain = Generator(target, **parts)(prompts)
        fast = SpeculativeGenerator(target, draft, num_draft_tokens=4, **parts)(prompts)

        assert plain.ids == fast.ids
        assert 5.0 == fast.statistics.mean_accepted_length

    def test_drafts_what_a_draft_of_the_same_vocabulary_does(self) -> None:
        """The same tokens as DraftModel, of a draft that is sometimes wrong."""
        mixed, new = permuted("bytes")
        target, other = random_decoder("bytes", 0, rows=1), random_decoder("bytes", 0, rows=1)
        other.table = target.table + torch.randn(
            target.table.shape, generator=torch.Generator().manual_seed(1)
        )
        own = copy.deepcopy(other)
        own.table = torch.full_like(other.table, 100.0)  # those that are no token are never looked at
        own.table[:, new] = other.table[:, : len(new)]
        back = new.argsort().tolist()
        # The same table row for the same text.
        own.line = lambda prefix: other.line([back[index] for index in prefix])
        other.table[:, len(new) :] = -torch.inf  # tokens that the other tokenizer lacks
        drafts = [DraftModel(other), CommonTokens(own, mixed, tokenizer("bytes"), target.shape.vocab_size)]
        results = []
        for draft in drafts:
            parts = {"sampler": Sample(5), "processors": Temperature(0.8), "stop": MaxNewTokens(100)}
            results.append(SpeculativeGenerator(target, draft, num_draft_tokens=4, **parts)([1, 2, 3]))

        assert results[0].ids == results[1].ids
        assert results[0].statistics.accepted == results[1].statistics.accepted
        assert 0 < sum(results[0].statistics.accepted) < sum(results[0].statistics.drafted)


@pytest.mark.mostly_slow(every=6)
@pytest.mark.parametrize("draft_kind", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_changes_no_text(kind: str, draft_kind: str) -> None:
    """For all pairs of tokenizers: random models, prompts with special tokens, greedy or sampled."""
    dice = random.Random(f"{kind} {draft_kind}")
    target, own = random_decoder(kind, 1), random_decoder(draft_kind, 2, max_length=96)
    draft = CommonTokens(own, tokenizer(draft_kind), tokenizer(kind), target.shape.vocab_size)
    for seed in range(3):
        vocab = target.shape.vocab_size
        prompts = [[dice.randrange(vocab) for _ in range(dice.randint(1, 60))] for _ in range(2)]
        parts = {
            "sampler": Sample(seed) if seed % 3 else Greedy(),
            "stop": EndOfSequence(tokenizer(kind).eos_token_id) | MaxNewTokens(20),
        }
        plain = Generator(target, **parts)(prompts)

        assert plain.ids == SpeculativeGenerator(target, draft, **parts)(prompts).ids


@pytest.mark.parametrize(("kind", "draft_kind"), [("bytes-few", "bytes"), ("pieces", "bytes-few")])
def test_tokens_that_the_draft_lacks_are_tokenized_again(kind: str, draft_kind: str) -> None:
    """The draft model's input has the same text as the target's, except incomplete characters."""
    target, own = writer(kind, TEXT, **{**SHAPE, "max_length": 500}), random_decoder(draft_kind, 2, rows=1)
    ids = tokenizer(kind).encode(TEXT)[:60]
    SpeculativeGenerator(
        target,
        CommonTokens(own, tokenizer(draft_kind), tokenizer(kind), target.shape.vocab_size),
        stop=MaxNewTokens(3),
        num_draft_tokens=1,
    )(ids)
    fed = [index for index in own.slots[0].tolist() if index >= 0]

    assert tokenizer(kind).decode(ids, skip_special_tokens=True)[:40] in tokenizer(draft_kind).decode(fed)


def test_the_drafts_own_beginning_goes_first() -> None:
    """A draft with a beginning-of-sequence token gets exactly one, also if the target has none."""
    for kind in ("bytes", "pieces"):
        own = random_decoder("bytes-bos", 2, rows=1)
        target = random_decoder(kind, 1, rows=1)
        draft = CommonTokens(own, tokenizer("bytes-bos"), tokenizer(kind), target.shape.vocab_size)
        SpeculativeGenerator(target, draft, stop=MaxNewTokens(3))(tokenizer(kind).encode("The fox"))
        fed = tokenizer("bytes-bos").decode([index for index in own.slots[0].tolist() if index >= 0])

        assert fed.startswith(("<s>The fox", "<s> The fox"))


def test_the_end_of_sequence_is_matched_by_its_role() -> None:
    """</s> and <|end|> are equivalent: a draft that ends with the target is accepted."""
    text = "The quick brown fox"
    kind, other = tokenizer("bytes"), tokenizer("bytes-few")
    table = torch.full((1, len(other)), -5.0)
    table[0, other.eos_token_id] = 5.0
    draft = CommonTokens(ScriptedDecoder(table), other, kind, len(kind))
    history = History(
        torch.tensor([[[*kind.encode(text), 0, 0]]]),
        torch.tensor([[len(kind.encode(text))]]),
        torch.tensor([1]),
        torch.tensor([0]),
    )
    drafted = draft.propose(history, torch.tensor([1]), SamplingPipeline(None, Greedy()))

    assert [[kind.eos_token_id]] == drafted.ids.tolist()


def test_scores_on_request() -> None:
    """Processed logits of each draft token, -inf for tokens that the draft lacks."""
    own = random_decoder("bytes-few", 3, rows=1)
    draft = CommonTokens(own, tokenizer("bytes-few"), tokenizer("bytes"), 425)
    prompt = tokenizer("bytes").encode("The quick")
    history = History(
        torch.tensor([[prompt + [0] * 8]]),
        torch.tensor([[len(prompt)]]),
        torch.tensor([1]),
        torch.tensor([0]),
    )
    sample = SamplingPipeline(Temperature(0.5), Sample(1), draft_scores=True)
    found = draft.propose(history, torch.tensor([3]), sample)
    again = Sample(1)

    assert found.scores is not None
    assert (1, 3, 425) == tuple(found.scores.shape)
    lacking = [index for index in range(425) if index not in draft._draft_of]
    assert (found.scores[..., lacking] == -torch.inf).all()
    for i, drafted in enumerate(found.ids[0].tolist()):
        seen = History(history.ids, history.length + i, history.prompt, history.random_stream)

        assert drafted == int(again(found.scores[:, i : i + 1], seen))
    assert draft.propose(history, torch.tensor([3]), SamplingPipeline(None, Greedy())).scores is None


def test_a_token_that_the_draft_lacks_may_be_forced() -> None:
    """No draft where the chain leaves only tokens that the draft lacks; the text equals plain decoding."""
    target, own = random_decoder("bytes", 1, rows=1), random_decoder("bytes-few", 3, rows=1)
    draft = CommonTokens(own, tokenizer("bytes-few"), tokenizer("bytes"), target.shape.vocab_size)
    lacking = [index for index in range(420) if index not in draft._draft_of]
    parts = {"processors": AllowedTokens(lacking[:4]), "stop": MaxNewTokens(12)}

    assert Generator(target, **parts)([1]).ids == SpeculativeGenerator(target, draft, **parts)([1]).ids


def test_the_model_of_the_draft_is_not_touched() -> None:
    """Weights and config are unchanged: nothing is pruned."""
    original = model(290)
    before = {name: tensor.clone() for name, tensor in original.state_dict().items()}
    own = StaticDecoder(original, batch_size=1, **SHAPE)
    target = random_decoder("bytes", 1, rows=1)
    draft = CommonTokens(own, tokenizer("bytes-few"), tokenizer("bytes"), target.shape.vocab_size)
    SpeculativeGenerator(target, draft, stop=MaxNewTokens(10))([5, 6])

    assert all(torch.equal(before[name], tensor) for name, tensor in original.state_dict().items())


class TestRefusal:
    """Invalid combinations are refused at construction."""

    def test_of_another_vocabulary_size(self) -> None:
        """The noise depends on it, so it must be the target's own."""
        draft = CommonTokens(random_decoder("bytes", 1), tokenizer("bytes"), tokenizer("bytes"), 421)

        with pytest.raises(ValueError, match="'vocab_size' must be the target's, 426: got 421"):
            SpeculativeGenerator(random_decoder("bytes", 1), draft)

    def test_of_too_few_rows(self) -> None:
        """A draft of fewer rows than the target's."""
        draft = CommonTokens(random_decoder("bytes", 1, rows=1), tokenizer("bytes"), tokenizer("bytes"), 426)

        with pytest.raises(ValueError, match="at least the target's 2 rows: got 1"):
            SpeculativeGenerator(random_decoder("bytes", 1), draft)

    def test_of_vocabularies_without_a_common_token(self) -> None:
        """No token could ever be drafted."""
        own = ScriptedDecoder(torch.randn(3, 1))

        with pytest.raises(ValueError, match="must have a token in common with the target's"):
            CommonTokens(own, tokenizer("pieces"), tokenizer("bytes"), 3)

    @pytest.mark.parametrize("value", [None, "gpt2", PreTrainedTokenizerFast])
    @pytest.mark.parametrize("name", ["draft_tokenizer", "tokenizer"])
    def test_of_what_is_no_tokenizer(self, name: str, value: Any) -> None:
        """A name or a class is not a tokenizer."""
        both = {"draft_tokenizer": tokenizer("bytes"), "tokenizer": tokenizer("bytes"), name: value}
        message = re.escape(f"'{name}' must be a Hugging Face tokenizer: got {value!r}")
        with pytest.raises(TypeError, match=message):
            CommonTokens(random_decoder("bytes", 1), **both, vocab_size=426)
        with pytest.raises(TypeError, match=message):
            RetokenizedDraft(random_decoder("bytes", 1), **both)

    @pytest.mark.parametrize("value", [0, "many", None, True])
    def test_of_a_size_that_is_none(self, value: Callable[..., Any]) -> None:
        """A vocabulary has at least one id."""
        with pytest.raises((TypeError, ValueError), match="vocab_size"):
            CommonTokens(random_decoder("bytes", 1), tokenizer("bytes"), tokenizer("bytes"), value)  # type: ignore[arg-type]
