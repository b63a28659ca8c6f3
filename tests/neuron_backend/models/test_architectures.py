"""
The decoder contract for every supported architecture.

The reference is the stock model on each row alone, without a cache. With a weight format, it is the model
with the dequantized weights.
"""

from collections.abc import Callable
from functools import cache

import attrs
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from decodekit.testing import check_decoder

Models = Callable[..., PreTrainedModel]

NAMES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gpt2",
    "gpt_neox",
    "opt",
    "phi",
    "mixtral",
    "gemma2",
    "falcon",
    "falcon_alibi",
    "bloom",
    "mpt",
    "gpt_neo",
    "gemma3n",
    "llama4",
    "deepseek_v2",
    "deepseek_v3",
)

# Models that need adaptation, and the variants that they are tested in.
ADAPTED = ("falcon_alibi", "bloom", "mpt", "gpt_neo", "llama4")

FORMATS: tuple[str | None, ...] = (None, "int8")
"""Weight formats; None is the model's own dtype."""

PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60, 1, 30], [7]]
SPANS = (8, 16, 64)

# 0 - 1 - 4
#   \ 2 - 3
# 5
IDS = torch.tensor([[1, 2, 3, 4, 5, 6]] * 3)
PARENTS = torch.tensor([[-1, 0, 0, 2, 1, -1]] * 3)
PATHS = [[0], [0, 1], [0, 2], [0, 2, 3], [0, 1, 4], [5]]


@attrs.frozen(eq=False)
class Case:
    """A decoder of three rows, and the reference model."""

    decoder: CompiledDecoder
    model: PreTrainedModel
    tolerance: float

    def expect(self, row: list[int], logits: Tensor) -> None:
        """*logits* follow the last of *row*, the last *n* prefixes of it: ``[n, vocab]``."""
        with torch.no_grad():
            whole = self.model(input_ids=torch.tensor([row]), use_cache=False).logits[0].float()

        torch.testing.assert_close(whole[-len(logits) :], logits, atol=self.tolerance, rtol=self.tolerance)


@pytest.fixture(scope="module")
def cases(tiny_model: Models) -> Callable[[str, str | None], Case]:
    """A case for each architecture and weight format, made when first asked for."""

    @cache
    def make(name: str, weights: str | None) -> Case:
        # Formats round to what float32 kernels compute.
        model = tiny_model(name, torch.float32 if weights else torch.float64)
        decoder = compile_decoder(
            model,
            batch_size=3,
            max_length=SPANS[-1],
            widths=(1, 4),
            tree_widths=(6,),
            spans=SPANS,
            target="eager",
            weights=weights,
        )
        return Case(
            # Some compute their softmax in float32 whatever their dtype.
            decoder,
            decoder.step.model if weights else model,
            tolerance=1e-4 if weights else 2e-5,
        )

    return make


@pytest.fixture(params=FORMATS, ids=str)
def weights(request: pytest.FixtureRequest) -> str | None:
    """A weight format."""
    found: str | None = request.param
    return found


@pytest.fixture(params=NAMES)
def case(
    request: pytest.FixtureRequest, cases: Callable[[str, str | None], Case], weights: str | None
) -> Case:
    """Of each architecture in each weight format."""
    return cases(request.param, weights)


def pos(*positions: int) -> Tensor:
    return torch.tensor(positions)


def right(count: int) -> Tensor:
    """*count* tokens of three rows, any but 50 and above."""
    return torch.randint(0, 50, (3, count), generator=torch.Generator().manual_seed(3))


def feed_chunks(decoder: CompiledDecoder, tokens: Tensor, start: int = 0) -> Tensor:
    """Four columns at a time, the same positions in all rows; the logits of the last four."""
    for first in range(0, tokens.shape[1], 4):
        logits = decoder.forward(tokens[:, first : first + 4], torch.full((3,), start + first))
    return logits.clone()


class TestRaggedBatch:
    def test_is_each_row_alone(self, case: Case, prefill: Callable[..., Tensor]) -> None:
        """Greedy text and its logits, past the window and over three spans."""
        spans_used = set()
        decoder = case.decoder
        original = dict(decoder.programs)

        def recording(ids: Tensor, cache_pos: Tensor, slots: Tensor) -> Tensor:
            spans_used.add(slots.shape[0] - decoder.cache.reserved)
            return original[ids.shape[1]](ids, cache_pos, slots)

        rows = [list(prompt) for prompt in PROMPTS]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoder, "programs", dict.fromkeys(original, recording))
            logits = [prefill(decoder, rows, 4).clone()]
            for _ in range(30):
                for row, token in zip(rows, logits[-1].argmax(dim=-1).tolist(), strict=True):
                    row.append(token)
                newest = torch.tensor([row[-1:] for row in rows])
                logits.append(decoder.forward(newest, pos(*(len(row) - 1 for row in rows)))[:, 0].clone())
        scored = torch.stack(logits, dim=1)

        assert set(SPANS) == spans_used
        # Both score the same prefixes, so the sampled tokens must agree.
        for row, own in zip(rows, scored, strict=True):
            case.expect(row, own)
        # A repetitive text would prove nothing.
        assert sorted(len(set(row)) for row in rows)[1] > 4

    def test_reaches_the_last_position(self, case: Case) -> None:
        """A row that fills the cache scores as the stock model does."""
        tokens = right(64)
        logits = feed_chunks(case.decoder, tokens)

        case.expect(tokens[1].tolist(), logits[1])


class TestRewind:
    def test_overwrites_wrong_tokens(self, case: Case) -> None:
        """Wrong tokens, across a span and a window, leave no trace."""
        tokens = right(28)
        expected = feed_chunks(case.decoder, tokens)
        feed_chunks(case.decoder, 50 + tokens[:, 4:28] % 10, start=4)
        found = feed_chunks(case.decoder, tokens[:, 4:], start=4)

        assert torch.equal(expected, found)
        case.expect(tokens[0].tolist(), found[0])

    def test_goes_back_by_a_different_number_in_each_row(self, case: Case) -> None:
        """Rows rewound to positions 5, 13 and 24 continue from there."""
        tokens, starts = right(28), [5, 13, 24]
        feed_chunks(case.decoder, tokens)
        newest = torch.tensor([[51, 52, 53, 54]] * 3)
        logits = case.decoder.forward(newest, pos(*starts))
        for row, start in enumerate(starts):
            case.expect([*tokens[row, :start].tolist(), 51, 52, 53, 54], logits[row])


class TestSpans:
    @pytest.mark.parametrize("length", [8, 16])
    def test_all_say_the_same(self, case: Case, length: int) -> None:
        """Logits at the end of a span are those of every longer one."""
        tokens = right(length)
        expected = feed_chunks(case.decoder, tokens)
        for span in SPANS:
            if span >= length:
                again = case.decoder.forward(tokens[:, -4:], pos(*[length - 4] * 3), span)

                torch.testing.assert_close(expected, again, atol=case.tolerance, rtol=case.tolerance)


class TestTrees:
    @pytest.mark.parametrize("length", [12, 24])
    def test_score_each_path(self, case: Case, length: int) -> None:
        """A column off the first branch is in a scratch slot."""
        tokens = right(length)
        feed_chunks(case.decoder, tokens)
        logits = case.decoder.forward_tree(IDS, pos(*[length] * 3), PARENTS)
        for column, path in enumerate(PATHS):
            case.expect([*tokens[2].tolist(), *IDS[2, path].tolist()], logits[2, column : column + 1])


class TestContract:
    @pytest.mark.parametrize("name", ADAPTED)
    def test_holds(self, name: str, tiny_model: Models) -> None:
        """Chains and trees up to the last position."""
        check_decoder(
            CompiledDecoder(tiny_model(name), batch_size=2, max_length=18, widths=(1, 3), tree_widths=(4,))
        )


class TestGraph:
    @pytest.mark.mostly_slow(every=10)
    @pytest.mark.parametrize(
        "name",
        ["gemma2", "gemma3n", "mixtral", *ADAPTED, "deepseek_v2", "deepseek_v3"],
    )
    def test_has_nothing_that_neuron_refuses(self, name: str, tiny_model: Models) -> None:
        """Masks, biases, RoPE and experts use operations that its compiler supports."""
        decoder = CompiledDecoder(tiny_model(name), max_length=64, widths=(4,), tree_widths=(3,), spans=(64,))

        assert {"width_4_span_64": [], "tree_3_span_64": []} == decoder.lint()


class TestEarlyExit:
    @pytest.mark.parametrize("name", [*ADAPTED, "deepseek_v3"])
    def test_is_a_decoder_of_its_own(self, name: str, tiny_model: Models) -> None:
        """The first layer is compared with the stock model's way over it as it is built."""
        whole = CompiledDecoder(tiny_model(name), max_length=32, widths=(1, 4))
        draft = whole.early_exit(1, target="eager")

        assert 1 == len(draft.cache.keys)
        assert draft.forward(torch.tensor([[3]]), pos(0)).isfinite().all()
        assert 2 == len(CompiledDecoder(whole.step.model, max_length=32, widths=(1,)).cache.keys)


class TestModel:
    @pytest.mark.parametrize("name", ADAPTED)
    def test_is_left_as_it_is(self, name: str, tiny_model: Models) -> None:
        """The caller's modules keep the class's forward, and get no buffers."""
        model = tiny_model(name)
        CompiledDecoder(model, max_length=32, widths=(1, 4))

        assert not [module for module in model.modules() if "forward" in vars(module)]
        assert not [key for key, _ in model.named_buffers() if "alibi" in key]


class TestCompiled:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["falcon_alibi", "gpt_neo"])
    def test_is_saved_and_loaded(self, name: str, tiny_model: Models, tmp_path: object) -> None:
        """Programs for the CPU are compared with the stock model, and give the same logits after loading."""
        decoder = compile_decoder(
            tiny_model(name), max_length=48, widths=(4,), tree_widths=(3,), spans=(16, 48), target="cpu"
        )
        decoder.save(f"{tmp_path}/decoder")
        loaded = load_decoder(f"{tmp_path}/decoder")
        tokens = right(24)[:1]
        for first in range(0, 24, 4):
            expected = decoder.forward(tokens[:, first : first + 4], pos(first))
            found = loaded.forward(tokens[:, first : first + 4], pos(first))

            assert torch.equal(expected, found)

        tree = (IDS[:1, :3], pos(24), PARENTS[:1, :3])

        assert torch.equal(decoder.forward_tree(*tree), loaded.forward_tree(*tree))
        assert not loaded.compiled
