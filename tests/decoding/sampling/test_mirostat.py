"""Text of a chosen surprise."""

import math
from typing import Any

import pytest
import torch

from decodekit.decoding import Generator, MaxNewTokens, Mirostat, MirostatRun
from decodekit.decoding.sampling import noise
from decodekit.testing import ScriptedDecoder, last_token

from .by_definition import draw, history_at, softmax


def by_definition(settings: Mirostat, logits: list[float], mu: float, stream: int, position: int) -> Any:
    """One step on lists: the token and the next limit, for logits in any order."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    probs = [p for p in (softmax(logits)[i] for i in order) if p > 0]
    if settings.version == 2:
        count = next((i for i, p in enumerate(probs) if -math.log2(p) > mu), len(probs))
    else:
        t = [math.log((i + 2) / (i + 1)) for i in range(min(99, len(probs) - 1))]
        b = [math.log(probs[i] / probs[i + 1]) for i in range(len(t))]
        s = sum(x * y for x, y in zip(t, b, strict=True)) / sum(x * x for x in t)
        ε = s - 1
        count = int(((ε * 2**mu) / (1 - len(logits) ** -ε)) ** (1 / s))
    kept = set(order[: max(count, 1)])
    left = [x if i in kept else -math.inf for i, x in enumerate(logits)]
    token = draw(left, stream, position)
    surprise = -math.log2((softmax(logits) if settings.of_model else softmax(left))[token])
    return token, mu - settings.eta * (surprise - settings.tau)


def one_step(settings: Mirostat, logits: list[float]) -> MirostatRun:
    """A run of one row after its first token."""
    run = settings.begin(1)
    run(torch.tensor([[logits]]), history_at([1], torch.tensor([0])))
    return run


def kept(settings: Mirostat, logits: list[float], draws: int = 300) -> set[int]:
    """The tokens that can come first."""
    random_streams = noise.random_streams(torch.arange(draws), 0)
    run = settings.begin(draws)
    ids = run(
        torch.tensor(logits, dtype=torch.float64).expand(draws, 1, -1),
        history_at([1] * draws, random_streams),
    )
    return set(ids.flatten().tolist())


class TestMirostat:
    @pytest.mark.mostly_slow(every=5)
    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize("of_model", [False, True])
    @pytest.mark.parametrize("masked", [False, True])
    def test_equals_its_definition(self, version: int, of_model: bool, masked: bool) -> None:
        """30 steps of two rows give the definition's tokens and limits, fed with the same noise."""
        settings = Mirostat(3.0, 0.4, version, of_model=of_model)
        rng = torch.Generator().manual_seed(6)
        random_streams = noise.random_streams(torch.arange(2), 5)
        run = settings.begin(2)
        mu = [6.0, 6.0]
        for step in range(30):
            logits = 2 * torch.randn(2, 1, 150, generator=rng)
            if masked:
                logits[torch.rand(logits.shape, generator=rng) < 0.4] = -torch.inf
            ids = run(logits, history_at([4 + step, 9 + step], random_streams))
            for row, position in enumerate([4 + step, 9 + step]):
                # The definition has no float32.
                scores = logits[row, 0].double().tolist()
                token, mu[row] = by_definition(settings, scores, mu[row], int(random_streams[row]), position)

                assert token == int(ids[row])
            assert mu == pytest.approx(run.mu.tolist(), abs=1e-9)
            assert [4 + step, 9 + step] == run.length.tolist()

    @pytest.mark.mostly_slow(every=5)
    @pytest.mark.parametrize(("version", "of_model"), [(1, False), (2, False), (1, True), (2, True)])
    @pytest.mark.parametrize("tau", [3.0, 4.0])
    def test_keeps_the_surprise(self, version: int, of_model: bool, tau: float) -> None:
        """
        Over 1,000 tokens the mean observed surprise is tau, to within what the limit has moved.

        The limit sums up the errors: mean - tau = (2 tau - mu) / (eta n), and mu stays bounded.
        """
        n = 1000
        # Zipf's distribution with exponent 1.1 over 1,000 tokens: 6.8 bits, the most probable token 2.5.
        p = torch.arange(1, 1001, dtype=torch.float64) ** -1.1
        logits = (p / p.sum()).log().float()
        run = Mirostat(tau, 0.1, version, of_model=of_model).begin(1)
        total = 0.0
        for position in range(1, n + 1):
            before = float(run.mu)
            run(logits[None, None], history_at([position], torch.tensor([3])))
            total += tau + (before - float(run.mu)) / 0.1

        assert abs(float(run.mu)) < 4 * tau
        assert tau == pytest.approx(total / n, abs=6 * tau / (0.1 * n))

    def test_the_texts_own_surprise(self) -> None:
        """Seen from outside, a generated text has tau bits a token in the model's distribution."""
        p = torch.arange(1, 501, dtype=torch.float64) ** -1.1
        surprise = -(p / p.sum()).log2()
        decoder = ScriptedDecoder(
            (p / p.sum()).log().float()[None], max_length=1500, batch_size=2, line=last_token
        )
        settings = Mirostat(3.0, of_model=True)
        ids = Generator(decoder, sampler=settings, stop=MaxNewTokens(1400))([[1], [2]]).ids

        for row in ids:
            assert 3.0 == pytest.approx(float(surprise[row].mean()), abs=0.05)

    @pytest.mark.parametrize(
        ("tau", "expected"),
        [
            # The limit begins at 2 tau bits; the tokens have 3, 1, 2 and 3.
            pytest.param(0.4, {1}, id="0.8 bits: the top token stays"),
            pytest.param(0.6, {1}, id="1.2 bits"),
            pytest.param(1.2, {1, 2}, id="2.4 bits"),
            pytest.param(1.6, {0, 1, 2, 3}, id="3.2 bits"),
        ],
    )
    def test_version_2_by_hand(self, tau: float, expected: set[int]) -> None:
        """Tokens beyond the limit go."""
        assert expected == kept(Mirostat(tau), torch.tensor([0.125, 0.5, 0.25, 0.125]).log().tolist())

    def test_version_2_keeps_what_lies_on_the_limit(self) -> None:
        """Of four equal tokens each has 2 bits, exactly."""
        assert {0, 1, 2, 3} == kept(Mirostat(1.0), [0.0] * 4)

    def test_version_1_by_hand(self) -> None:
        """Exponent 2: k² = 2^mu / (1 - 1/N), so 16 · 4 / 3 of 4 tokens keep all, and 2 · 4 / 3 one."""
        logits = [-2 * math.log(rank) for rank in range(1, 5)]

        assert {0, 1, 2, 3} == kept(Mirostat(2.0, version=1), logits)
        assert {0} == kept(Mirostat(0.5, version=1), logits)

    @pytest.mark.parametrize(
        ("logits", "tau", "expected"),
        [
            pytest.param([0.0] * 5, 3.0, {0, 1, 2, 3, 4}, id="flat: more than the limit keeps all"),
            pytest.param([0.0] * 5, 0.9, {0}, id="flat: less keeps the first"),
            pytest.param([-math.inf, 1.0, -math.inf], 3.0, {1}, id="one token has no exponent"),
            pytest.param([1.0], 3.0, {0}, id="a vocabulary of one"),
            pytest.param([1 + math.log(2), 1.0], 0.6, {0, 1}, id="exponent 1"),
        ],
    )
    def test_version_1_at_its_edges(self, logits: list[float], tau: float, expected: set[int]) -> None:
        """Where the formula divides by 0 it has its limit; the exponent 1 keeps 2.3 / log 2 = 3.3 of 2."""
        assert expected == kept(Mirostat(tau, version=1), logits)

    @pytest.mark.parametrize(("of_model", "surprise"), [(False, 0.0), (True, 1.0)])
    def test_learns(self, of_model: bool, surprise: float) -> None:
        """Of ½, ¼, ¼ with a limit of 1.2 bits one is left: 0 bits among those, 1 in the model's."""
        run = one_step(Mirostat(0.6, 0.25, of_model=of_model), [math.log(2), 0.0, 0.0])

        assert [0] == run.sampled.tolist()
        assert 1.2 - 0.25 * (surprise - 0.6) == pytest.approx(float(run.mu))

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_row_without_a_token_learns_nothing(self, version: int) -> None:
        """The limit stays a number."""
        assert [10.0] == one_step(Mirostat(version=version), [-math.inf] * 3).mu.tolist()

    @pytest.mark.parametrize(
        ("settings", "error", "message"),
        [
            ({"tau": 0.0}, ValueError, "'tau' must be > 0 and finite: got 0.0"),
            ({"tau": math.inf}, ValueError, "'tau' must be > 0 and finite: got inf"),
            ({"tau": "5"}, TypeError, "'tau' must be a number: got '5', a str"),
            ({"eta": math.nan}, ValueError, "'eta' must be > 0 and finite: got nan"),
            ({"eta": True}, TypeError, "'eta' must be a number: got True, a bool"),
            ({"version": 3}, ValueError, "'version' must be 1 or 2: got 3"),
            ({"version": True}, ValueError, "'version' must be 1 or 2: got True"),
            ({"seed": 0.5}, TypeError, "'seed' must be"),
        ],
    )
    def test_refuses(self, settings: dict[str, Any], error: type[Exception], message: str) -> None:
        """The message has the rule and the value."""
        with pytest.raises(error, match=message):
            Mirostat(**settings)
