"""On-device sampling equals the host's."""

from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from decodekit.decoding import Greedy, Sample
from decodekit.decoding.history import History
from decodekit.decoding.protocols import Processor, Sampler
from decodekit.decoding.sampling import noise
from decodekit.decoding.sampling.pipeline import SamplingPipeline
from decodekit.neuron_backend.lint.graph_lint import lint_graph
from decodekit.neuron_backend.lowering.export import lower
from decodekit.neuron_backend.on_device_sampling import device_ranking
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
    """A few tokens before each column, garbage after them."""
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
    """One parameter for all rows, or one per row."""
    return st.one_of(values, st.lists(values, min_size=BATCH, max_size=BATCH))


def device_stages_of(processors: Processor, logits: Tensor) -> Tensor:
    """Logits processed by the device stages."""
    history = history_of(*logits.shape)
    for stage in DeviceSampling(processors, Greedy()).stages:
        logits = stage(logits, history)
    return logits


class TestTopK:
    @pytest.mark.parametrize("widest", [8, 16, 16_384])
    @given(logits=tied_logits(), k=one_or_a_row(st.integers(0, 4)), ties=st.sampled_from(("keep", "first")))
    def test_keeps_what_the_host_keeps(self, widest: int, logits: Tensor, k: Any, ties: str) -> None:
        """Ties and disabled rows included, in one piece and in several levels of pieces."""
        processor = TopK(k, ties=ties)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device_ranking, "WIDEST_TOP_K", widest)
            masked = device_stages_of(processor, logits)

        assert torch.equal(processor(logits, history_of(*logits.shape)), masked)

    def test_finds_the_largest_of_a_usual_vocabulary(self) -> None:
        """151,936 tokens take ten pieces."""
        logits = random_logits(151_936)

        assert torch.equal(logits.topk(50).values, device_ranking.descending(logits, 50))

    def test_pads_with_minus_inf(self) -> None:
        """If k exceeds the vocabulary."""
        found = device_ranking.descending(torch.tensor([[[1.0, 3.0, 2.0]]]), 5)

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
        """Where every sum is exact, the sets are equal, with and without a top-k before."""
        chain = TopK(k) | TopP(p, ties=ties, min_tokens=minimum)

        assert torch.equal(chain(logits, history_of(*logits.shape)), device_stages_of(chain, logits))

    @pytest.mark.parametrize("ties", ["last", "first", "keep"])
    @pytest.mark.parametrize("k", [0, 5])
    @pytest.mark.parametrize(
        ("p", "kept"),
        [
            # The least likely tokens are dropped while their mass is at most 1 - p.
            pytest.param(0.5, {0}, id="all-but-half"),
            pytest.param(0.75, {0, 1}, id="all-but-a-quarter"),
            pytest.param(0.875, {0, 1, 2}, id="all-but-the-ties"),
        ],
    )
    def test_drops_what_exactly_fits(self, p: float, kept: set[int], k: int, ties: str) -> None:
        """An edge between two values splits no ties."""
        logits = torch.tensor([0.5, 0.25, 0.125, 0.0625, 0.0625]).log().expand(BATCH, WIDTH, 5)

        left = device_stages_of(TopK(k) | TopP(p, ties=ties), logits)[1, 2] > -torch.inf

        assert kept == set(left.nonzero().flatten().tolist())

    @pytest.mark.parametrize("ties", ["last", "first", "keep"])
    @pytest.mark.parametrize("large", [1e4, 1e9, 1e15, 1e30])
    def test_keeps_what_the_host_keeps_of_large_logits(self, large: float, ties: str) -> None:
        """Equally large ones beside others, which differ from them by more than any weight is."""
        logits = random_logits(61)
        logits[..., [3, 4, 9]] = large
        chain = TopP(0.9, ties=ties)

        assert torch.equal(chain(logits, history_of(*logits.shape)), device_stages_of(chain, logits))

    @pytest.mark.parametrize("seed", range(20))
    def test_keeps_what_the_host_keeps_of_any_logits(self, seed: int) -> None:
        """Probabilities that are not exact, with no sum near the edge."""
        logits = random_logits(2000, seed)
        for k in ([40, 7], 0):
            chain = Temperature(0.8) | TopK(k) | TopP([0.9, 0.3 + 0.03 * seed]) | MinP(0.01)

            assert torch.equal(chain(logits, history_of(*logits.shape)), device_stages_of(chain, logits))

    @pytest.mark.parametrize("ties", ["last", "first", "keep"])
    @pytest.mark.parametrize("k", [0, 40])
    def test_counts_the_ties_of_a_usual_vocabulary(self, k: int, ties: str) -> None:
        """With bfloat16 logits, many tokens are tied at the edge."""
        logits = random_logits(30_000).bfloat16().float()
        chain = TopK(k) | TopP(0.7, ties=ties)

        assert torch.equal(chain(logits, history_of(*logits.shape)), device_stages_of(chain, logits))

    def test_leaves_a_disabled_row_unchanged(self) -> None:
        """Even tokens whose weight rounds to 0."""
        logits = torch.tensor([[[0.0, -90.0, -200.0]], [[0.0, -90.0, -200.0]]])

        for chain in (TopK(3) | TopP([1.0, 0.5]), TopP([1.0, 0.5])):
            kept = device_stages_of(chain, logits) > -torch.inf

            assert [[[True, True, True]], [[True, False, False]]] == kept.tolist()


class TestFirstLargest:
    @given(values=tied_logits())
    def test_is_an_argmax(self, values: Tensor) -> None:
        """The first of equal values."""
        assert torch.equal(values.argmax(dim=-1), first_largest(values))

    def test_is_always_a_valid_index(self) -> None:
        """An index out of range would fail on the device."""
        assert 2 == first_largest(torch.tensor([torch.nan, 1.0, torch.inf]))


SAFE = {
    name + suffix: entry.make([entry.example] * BATCH if suffix else entry.example)
    for name, entry in CATALOGUE.items()
    for suffix in ("", " per row")[: 1 + entry.rows]
    if entry.make(entry.example).device_safe  # type: ignore[attr-defined]
}
"""Every processor that is declared device_safe."""

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
    def test_samples_what_the_host_samples(
        self, chain: Processor | None, sampler: Sampler, vocab: int
    ) -> None:
        """Draw by draw, for logits whose two best are not within rounding of each other."""
        device, host = DeviceSampling(chain, sampler), SamplingPipeline(chain, sampler)
        for seed in range(20):
            logits, history = random_logits(vocab, seed), history_of(BATCH, WIDTH, vocab, seed)

            expected, _ = host(logits, history)

            assert torch.equal(expected, device(*device.inputs(logits, history)))

    @pytest.mark.parametrize("large", [1e4, 1e9, 1e30])
    def test_samples_what_the_host_samples_of_large_logits(self, large: float) -> None:
        """The noise is not rounded off: equally large logits are drawn equally often."""
        device, host = DeviceSampling(None, Sample()), SamplingPipeline(None, Sample())
        found = set()
        for seed in range(20):
            logits, history = random_logits(61, seed), history_of(BATCH, WIDTH, 61, seed)
            logits[..., [3, 4, 40]] = large

            sampled = device(*device.inputs(logits, history))

            assert torch.equal(host(logits, history)[0], sampled)
            found.update(sampled.flatten().tolist())
        assert {3, 4, 40} == found

    @every_sampler
    @pytest.mark.parametrize("processor", SAFE.values(), ids=SAFE.keys())
    def test_takes_every_safe_processor_of_the_catalogue(
        self, processor: Processor, sampler: Sampler
    ) -> None:
        """With the host's tokens, in a vocabulary small enough for the processor to matter."""
        device, host = DeviceSampling(processor, sampler), SamplingPipeline(processor, sampler)
        for seed in range(10):
            logits, history = random_logits(11, seed), history_of(BATCH, WIDTH, 11, seed)

            expected, _ = host(logits, history)

            assert torch.equal(expected, device(*device.inputs(logits, history)))

    @pytest.mark.mostly_slow(every=5)
    @every_chain
    @every_sampler
    def test_lowers_to_what_neuronx_cc_takes(self, chain: Processor | None, sampler: Sampler) -> None:
        """With a vocabulary of several pieces; the lowered module samples the same tokens."""
        sampling = DeviceSampling(chain, sampler)
        inputs = sampling.inputs(random_logits(40_000), history_of(BATCH, WIDTH, 40_000))

        lowered = lower(sampling, inputs)

        assert [] == [str(finding) for finding in lint_graph(lowered)]
        assert torch.equal(sampling(*inputs), lowered(*inputs))

    @every_chain
    @every_sampler
    def test_makes_its_constants_where_the_logits_are(
        self, chain: Processor | None, sampler: Sampler
    ) -> None:
        """The meta device rejects a mixture with host tensors."""
        sampling = DeviceSampling(chain, sampler)
        inputs = sampling.inputs(random_logits(40), history_of(BATCH, WIDTH, 40))

        sampled = sampling(*(tensor.to("meta") for tensor in inputs))

        assert ("meta", (BATCH, WIDTH)) == (sampled.device.type, tuple(sampled.shape))

    @every_sampler
    def test_samples_nothing_where_all_tokens_are_masked(self, sampler: Sampler) -> None:
        """All -inf or NaN gives -1, as on the host; other columns are sampled."""
        logits = random_logits(9)
        logits[0, 0], logits[1, 2, 4] = -torch.inf, torch.nan
        history = history_of(BATCH, WIDTH, 9)
        sampling = DeviceSampling(Temperature(0.5), sampler)

        sampled = sampling(*sampling.inputs(logits, history))

        assert torch.equal(SamplingPipeline(Temperature(0.5), sampler)(logits, history)[0], sampled)
        assert [(0, 0), (1, 2)] == [tuple(place) for place in (sampled < 0).nonzero().tolist()]

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
        """Ties with the last of them are counted, not sorted."""
        assert survivors == DeviceSampling(chain, Greedy()).stages[-1].survivors

    @pytest.mark.parametrize("kind", [TopK, TopP])
    def test_recognises_the_exact_type(self, kind: type) -> None:
        """A subclass may change the call: it has no variant unless it declares its call safe."""

        class Changed(kind):  # type: ignore[misc]
            pass

        class Safe(kind):  # type: ignore[misc]
            device_safe = True

        safe = Safe(1)

        with pytest.raises(ValueError, match="does not declare itself device_safe"):
            DeviceSampling(Changed(1), Greedy())
        assert [safe] == DeviceSampling(safe, Greedy()).stages

    @pytest.mark.parametrize("chain", [TopK(256), TopP(0.5, min_tokens=256)])
    def test_takes_the_largest_k(self, chain: Processor) -> None:
        """Which the libraries' own samplers on the device take too."""
        assert 1 == len(DeviceSampling(chain, Greedy()).stages)

    def test_makes_its_noise_on_the_host(self) -> None:
        """In float32, since the device has no float64."""
        inputs = DeviceSampling(None, Sample(seed=0)).inputs(random_logits(10), history_of(BATCH, WIDTH, 10))

        assert [(2, 3, 10), (2, 1, 11), (2, 3), (2,), (2, 3, 3), (2, 3, 4)] == [
            tuple(i.shape) for i in inputs
        ]
        assert torch.float64 not in [tensor.dtype for tensor in inputs]

    @pytest.mark.parametrize(
        ("chain", "reason"),
        [
            pytest.param(TopK(257), "'k' must be <= 256 there", id="large-k"),
            pytest.param(TopK(torch.tensor([5, 257])), "'k' must be <= 256 there", id="large-k-in-one-row"),
            pytest.param(TopP(0.5, min_tokens=257), "'min_tokens' must be <= 256 there", id="large-minimum"),
            pytest.param(MinP(0.1, min_tokens=2), "does not declare itself device_safe", id="not-safe"),
            pytest.param(Chain((abs,)), "does not declare itself device_safe", id="user-defined"),
        ],
    )
    def test_refuses_a_stage_by_name(self, chain: Processor, reason: str) -> None:
        """With the reason."""
        with pytest.raises(
            ValueError, match=r"^(TopK|TopP|MinP|<built-in).* cannot run on the device: "
        ) as e:
            DeviceSampling(chain, Greedy())
        assert reason in str(e.value)

    def test_refuses_a_sampler_by_name(self) -> None:
        """A user-defined sampler has no device variant."""

        def first(logits: Tensor, history: History) -> Tensor:
            return history.length

        with pytest.raises(ValueError, match=r"first.* cannot run on the device: only Greedy and Sample"):
            DeviceSampling(None, first)
