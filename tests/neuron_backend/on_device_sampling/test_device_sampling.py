"""What the device chooses is what the host chooses."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from decodekit.decoding import Greedy, Sample
from decodekit.decoding.history import History
from decodekit.decoding.protocols import Processor, Sampler
from decodekit.decoding.sampling import noise
from decodekit.decoding.sampling.pipeline import SamplingPipeline
from decodekit.neuron_backend.lint.graph_lint import lint_graph
from decodekit.neuron_backend.lowering.export import lower
from decodekit.neuron_backend.on_device_sampling import device_stages
from decodekit.neuron_backend.on_device_sampling.device_samplers import first_largest
from decodekit.neuron_backend.on_device_sampling.device_sampling import DeviceSampling
from decodekit.processors import (
    Chain,
    FrequencyPenalty,
    LogitBias,
    MinNewTokens,
    MinP,
    PresencePenalty,
    RepetitionPenalty,
    SuppressTokens,
    Temperature,
    TopK,
    TopP,
)

from ...processors.test_catalogue import CATALOGUE

BATCH, WIDTH = 2, 3


def history_of(batch: int, width: int, vocab: int, seed: int = 0) -> History:
    """A few tokens before each column, garbage behind them."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocab, (batch, 1, width + 8), generator=rng)
    length = torch.randint(2, 9, (batch, 1), generator=rng) + torch.arange(width)
    ids = ids.masked_fill(torch.arange(width + 8) >= length[:, -1, None, None], -1)
    return History(ids, length, torch.ones(batch).long(), noise.random_streams(torch.arange(batch), seed))


def random_logits(vocab: int, seed: int = 0) -> Tensor:
    """``[BATCH, WIDTH, vocab]``, the same for a seed."""
    return 3 * torch.randn(BATCH, WIDTH, vocab, generator=torch.Generator().manual_seed(seed))


@st.composite
def tied_logits(draw: st.DrawFn) -> Tensor:
    """Logarithms of powers of two, so that tokens tie and every sum of them is exact; some ``-inf``."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    vocab, depth = draw(st.integers(1, 40)), draw(st.integers(1, 12))
    halvings = torch.randint(0, depth, (BATCH, WIDTH, vocab), generator=rng)
    logits = torch.tensor(2.0).pow(-halvings.float()).log()
    masked = torch.rand(BATCH, WIDTH, vocab, generator=rng) < draw(st.sampled_from((0.0, 0.3, 1.0)))
    return logits.masked_fill(masked, -torch.inf)


def one_or_a_row(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A parameter of all rows, or one for each."""
    return st.one_of(values, st.lists(values, min_size=BATCH, max_size=BATCH))


def device_stages_of(processors: Processor, logits: Tensor) -> Tensor:
    """What the device's stages make of logits."""
    history = history_of(*logits.shape)
    for stage in DeviceSampling(processors, Greedy()).stages:
        logits = stage(logits, history)
    return logits


class TestTopK:
    @pytest.mark.parametrize("widest", [8, 16, 16_384])
    @given(logits=tied_logits(), k=one_or_a_row(st.integers(0, 4)), ties=st.sampled_from(("keep", "first")))
    def test_keeps_what_the_host_keeps(self, widest: int, logits: Tensor, k: Any, ties: str) -> None:
        """Ties included, off-values included, in one piece and in pieces of pieces."""
        processor = TopK(k, ties=ties)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device_stages, "WIDEST_TOP_K", widest)
            masked = device_stages_of(processor, logits)

        assert torch.equal(processor(logits, history_of(*logits.shape)), masked)

    def test_finds_the_largest_of_a_usual_vocabulary(self) -> None:
        """151,936 tokens take ten pieces."""
        logits = random_logits(151_936)

        assert torch.equal(logits.topk(50).values, device_stages.descending(logits, 50))

    def test_fills_up_what_is_missing(self) -> None:
        """More than there are."""
        found = device_stages.descending(torch.tensor([[[1.0, 3.0, 2.0]]]), 5)

        assert [3.0, 2.0, 1.0, -torch.inf, -torch.inf] == found[0, 0].tolist()


class TestTopP:
    @given(
        logits=tied_logits(),
        k=st.one_of(st.just(0), one_or_a_row(st.integers(0, 12))),
        p=one_or_a_row(st.sampled_from((0.125, 0.25, 0.5, 0.625, 0.75, 0.875, 0.984375, 1.0))),
        ties=st.sampled_from(("last", "first", "keep")),
        minimum=st.integers(1, 5),
    )
    def test_keeps_what_the_host_keeps_of_exact_probabilities(
        self, logits: Tensor, k: Any, p: Any, ties: str, minimum: int
    ) -> None:
        """Where every sum is exact on either side, the sets are equal; after a top-k and without."""
        chain = TopK(k) | TopP(p, ties=ties, min_tokens=minimum)

        assert torch.equal(chain(logits, history_of(*logits.shape)), device_stages_of(chain, logits))

    @pytest.mark.parametrize("ties", ["last", "first", "keep"])
    @pytest.mark.parametrize("k", [0, 5])
    @pytest.mark.parametrize(
        ("p", "kept"),
        [
            # What is least likely goes while it holds at most 1 - p together.
            pytest.param(0.5, {0}, id="all-but-half"),
            pytest.param(0.75, {0, 1}, id="all-but-a-quarter"),
            pytest.param(0.875, {0, 1, 2}, id="all-but-the-ties"),
        ],
    )
    def test_drops_what_exactly_fits(self, p: float, kept: set[int], k: int, ties: str) -> None:
        """An edge that lies between two values is no edge among ties."""
        logits = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625]).log().expand(BATCH, WIDTH, 5)

        left = device_stages_of(TopK(k) | TopP(p, ties=ties), logits)[1, 2] > -torch.inf

        assert kept == set(left.nonzero().flatten().tolist())

    @pytest.mark.parametrize("seed", range(20))
    def test_keeps_what_the_host_keeps_of_any_logits(self, seed: int) -> None:
        """Of probabilities that are not exact, with no sum near the edge."""
        logits = random_logits(2000, seed)
        for k in ([40, 7], 0):
            chain = Temperature(0.8) | TopK(k) | TopP([0.9, 0.3 + 0.03 * seed]) | MinP(0.01)

            assert torch.equal(chain(logits, history_of(*logits.shape)), device_stages_of(chain, logits))

    @pytest.mark.parametrize("ties", ["last", "first", "keep"])
    @pytest.mark.parametrize("k", [0, 40])
    def test_counts_the_ties_of_a_usual_vocabulary(self, k: int, ties: str) -> None:
        """Logits as coarse as a bfloat16 head's: at the edge there are many of one value."""
        logits = random_logits(30_000).bfloat16().float()
        chain = TopK(k) | TopP(0.7, ties=ties)

        assert torch.equal(chain(logits, history_of(*logits.shape)), device_stages_of(chain, logits))

    def test_leaves_a_row_that_is_off_alone(self) -> None:
        """Even what weighs nothing beside the likeliest."""
        logits = torch.tensor([[[0.0, -90.0, -200.0]], [[0.0, -90.0, -200.0]]])

        for chain in (TopK(3) | TopP([1.0, 0.5]), TopP([1.0, 0.5])):
            kept = device_stages_of(chain, logits) > -torch.inf

            assert [[[True, True, True]], [[True, False, False]]] == kept.tolist()


class TestFirstLargest:
    @given(values=tied_logits())
    def test_is_an_argmax(self, values: Tensor) -> None:
        """Of equals the first."""
        assert torch.equal(values.argmax(dim=-1), first_largest(values))

    def test_is_a_place_in_any_case(self) -> None:
        """A device does not forgive an index beyond the end."""
        assert 2 == first_largest(torch.tensor([torch.nan, 1.0, torch.inf]))


SAFE = {
    name + suffix: entry.make([entry.example] * BATCH if suffix else entry.example)
    for name, entry in CATALOGUE.items()
    for suffix in ("", " per row")[: 1 + entry.rows]
    if entry.make(entry.example).device_safe  # type: ignore[attr-defined]
}
"""Every processor that says of itself that it may run there."""

CHAINS = {
    "none": None,
    "scaling": Temperature(0.7),
    "filters": Temperature(0.7) | TopK(20) | TopP(0.9) | MinP(0.02),
    "per row": TopK([5, 30], ties="first")
    | TopP([0.8, 1.0], ties="first", min_tokens=2)
    | Temperature([0.5, 2.0]),
    "penalties": RepetitionPenalty(1.3)
    | PresencePenalty(0.2)
    | FrequencyPenalty(0.1, include_prompt=True)
    | TopK(10)
    | TopP(0.9),
    "constraints": SuppressTokens([3, 4]) | MinNewTokens(20, 5) | LogitBias({6: 1.5, 7: -2.0}) | TopK(10),
    "top-p alone": Temperature(0.7) | TopP(0.9, min_tokens=2),
    "twice": TopK(0) | TopP(1.0) | TopK(30) | TopP(0.95) | TopK(4) | TopP(0.9),
}
SAMPLERS = {"greedy": Greedy(), "sample": Sample(seed=3)}

every_chain = pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


class TestDeviceChoice:
    @every_chain
    @every_sampler
    @pytest.mark.parametrize("vocab", [11, 300])
    def test_chooses_what_the_host_chooses(
        self, chain: Processor | None, sampler: Sampler, vocab: int
    ) -> None:
        """Draw by draw, over logits whose two best are not within rounding of each other."""
        device, host = DeviceSampling(chain, sampler), SamplingPipeline(chain, sampler)
        for seed in range(20):
            logits, history = random_logits(vocab, seed), history_of(BATCH, WIDTH, vocab, seed)

            expected, _ = host(logits, history)

            assert torch.equal(expected, device(*device.inputs(logits, history)))

    @every_sampler
    @pytest.mark.parametrize("processor", SAFE.values(), ids=SAFE.keys())
    def test_takes_every_safe_processor_of_the_catalogue(
        self, processor: Processor, sampler: Sampler
    ) -> None:
        """And chooses with it what the host chooses, in a vocabulary small enough that it matters."""
        device, host = DeviceSampling(processor, sampler), SamplingPipeline(processor, sampler)
        for seed in range(10):
            logits, history = random_logits(11, seed), history_of(BATCH, WIDTH, 11, seed)

            expected, _ = host(logits, history)

            assert torch.equal(expected, device(*device.inputs(logits, history)))

    @every_chain
    @every_sampler
    def test_lowers_to_what_neuronx_cc_takes(self, chain: Processor | None, sampler: Sampler) -> None:
        """With a vocabulary of several pieces; and what is lowered chooses the same."""
        choice = DeviceSampling(chain, sampler)
        inputs = choice.inputs(random_logits(40_000), history_of(BATCH, WIDTH, 40_000))

        lowered = lower(choice, inputs)

        assert [] == [str(finding) for finding in lint_graph(lowered)]
        assert torch.equal(choice(*inputs), lowered(*inputs))

    @every_chain
    @every_sampler
    def test_makes_its_constants_where_the_logits_are(
        self, chain: Processor | None, sampler: Sampler
    ) -> None:
        """A device without data refuses what is mixed with the host's."""
        choice = DeviceSampling(chain, sampler)
        inputs = choice.inputs(random_logits(40), history_of(BATCH, WIDTH, 40))

        chosen = choice(*(tensor.to("meta") for tensor in inputs))

        assert ("meta", (BATCH, WIDTH)) == (chosen.device.type, tuple(chosen.shape))

    @every_sampler
    def test_chooses_nothing_where_nothing_is_left(self, sampler: Sampler) -> None:
        """Forbidden throughout, or garbage: -1, as on the host; the neighbours choose."""
        logits = random_logits(9)
        logits[0, 0], logits[1, 2, 4] = -torch.inf, torch.nan
        history = history_of(BATCH, WIDTH, 9)
        choice = DeviceSampling(Temperature(0.5), sampler)

        chosen = choice(*choice.inputs(logits, history))

        assert torch.equal(SamplingPipeline(Temperature(0.5), sampler)(logits, history)[0], chosen)
        assert [(0, 0), (1, 2)] == [tuple(place) for place in (chosen < 0).nonzero().tolist()]

    @pytest.mark.parametrize(
        ("chain", "survivors"),
        [
            pytest.param(TopK([3, 8]) | TopP(0.5), 8, id="the-largest-of-the-rows"),
            pytest.param(TopK(4) | TopK(30) | TopP(0.5), 4, id="the-smallest-of-the-stages"),
            pytest.param(TopK(6) | TopK([2, 0]) | TopP(0.5), 6, id="one-that-is-off-in-a-row"),
            pytest.param(TopK(6) | Temperature(2.0) | MinP(0.1) | TopP(0.5), 6, id="local-stages-between"),
            pytest.param(TopK(6) | LogitBias({1: 0.5}) | TopP(0.5), None, id="ties-undone"),
            pytest.param(TopK([5, 0]) | TopP(0.5), None, id="only-in-one-row"),
            pytest.param(Temperature(2.0) | TopP(0.5), None, id="no-top-k"),
        ],
    )
    def test_knows_how_many_a_top_p_has_to_sort(self, chain: Processor, survivors: int | None) -> None:
        """Ties with the last of them are not sorted but counted."""
        assert survivors == DeviceSampling(chain, Greedy()).stages[-1].survivors

    def test_makes_its_noise_on_the_host(self) -> None:
        """In single precision: float64 has no place on the device."""
        inputs = DeviceSampling(None, Sample()).inputs(random_logits(10), history_of(BATCH, WIDTH, 10))

        assert [(2, 3, 10), (2, 1, 11), (2, 3), (2,), (2, 3, 3), (2, 3, 4)] == [
            tuple(i.shape) for i in inputs
        ]
        assert torch.float64 not in [tensor.dtype for tensor in inputs]

    @pytest.mark.parametrize(
        ("chain", "reason"),
        [
            pytest.param(TopK(9000), "'k' must be <= 8,192 there", id="huge-k"),
            pytest.param(
                TopP(0.5, min_tokens=9000), "'min_tokens' must be <= 8,192 there", id="huge-minimum"
            ),
            pytest.param(MinP(0.1, min_tokens=2), "does not declare itself device_safe", id="not-safe"),
            pytest.param(Chain((abs,)), "does not declare itself device_safe", id="somebody-elses"),
        ],
    )
    def test_refuses_a_stage_by_name(self, chain: Processor, reason: str) -> None:
        """With the reason."""
        with pytest.raises(
            ValueError, match=r"^(TopK|TopP|MinP|<built-in).* cannot run on the device: "
        ) as e:
            DeviceSampling(chain, Greedy())
        assert reason in str(e.value)

    def test_refuses_a_selection_by_name(self) -> None:
        """Nobody knows what it computes with."""

        def first(logits: Tensor, history: History) -> Tensor:
            return history.length

        with pytest.raises(ValueError, match=r"first.* cannot run on the device: only Greedy and Sample"):
            DeviceSampling(None, first)
