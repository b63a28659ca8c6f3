"""Chains of other systems, on probabilities that are exact in binary."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import GenerationConfig

from decodekit.processors import DRY, XTC, Chain, MinP, from_generation_config, presets

from .by_hand import after, kept, run
from .interop.test_generation_config import FIELDS

Preset = Callable[..., Chain]

HALVES = [0.5, 0.25, 0.125, 0.0625, 0.0625]
TIES = [0.125, 0.25, 0.25, 0.25, 0.125]

PRESETS: dict[str, Preset] = {
    "transformers": presets.transformers,
    "vllm": presets.vllm,
    "llama_cpp": presets.llama_cpp,
    "mlx": presets.mlx,
}
NAN = float("nan")

NOT_NUMBERS = ("sequence_bias", "renormalize_logits", "logit_bias", "allowed_token_ids")
TEMPERATURE = {"transformers": "temperature", "vllm": "temperature", "llama_cpp": "temp", "mlx": "temp"}


def stages(chain: Chain) -> list[str]:
    """The classes in a chain."""
    return [type(stage).__name__ for stage in chain.processors]


class TestKeptSets:
    @pytest.mark.parametrize(
        ("top_p", "from_below", "from_above"),
        [
            (0.5, [0], [0]),
            (0.6, [0, 1], [0, 1]),
            (0.75, [0, 1], [0, 1]),
            # The two last are equal: from below the lower id falls, from above it stays.
            (0.9, [0, 1, 2, 4], [0, 1, 2, 3]),
            (1 - 1e-7, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
            (1.0, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        ],
    )
    def test_top_p(self, top_p: float, from_below: list[int], from_above: list[int]) -> None:
        """Three drop the tail that holds 1 - p at most, one keeps the head that reaches p."""
        sets = {name: kept(preset(top_p=top_p), HALVES) for name, preset in PRESETS.items()}

        assert {
            "transformers": from_below,
            "vllm": from_below,
            "mlx": from_below,
            "llama_cpp": from_above,
        } == sets

    @pytest.mark.parametrize(
        ("top_k", "with_ties", "exactly"),
        [
            (1, [1, 2, 3], [1]),
            (2, [1, 2, 3], [1, 2]),
            (3, [1, 2, 3], [1, 2, 3]),
            (0, [*range(5)], [*range(5)]),
        ],
    )
    def test_top_k(self, top_k: int, with_ties: list[int], exactly: list[int]) -> None:
        """Two keep all that tie with the k-th, two exactly k."""
        sets = {name: kept(preset(top_k=top_k), TIES) for name, preset in PRESETS.items()}

        assert {
            "transformers": with_ties,
            "vllm": with_ties,
            "mlx": exactly,
            "llama_cpp": exactly,
        } == sets

    def test_top_k_and_top_p(self) -> None:
        """Top-p of what top-k left, [4/7, 2/7, 1/7], or of everything."""
        sets = {name: kept(preset(top_k=3, top_p=0.8), HALVES) for name, preset in PRESETS.items()}

        assert {
            "transformers": [0, 1],
            "vllm": [0, 1],
            "mlx": [0, 1, 2],
            "llama_cpp": [0, 1],
        } == sets

    @pytest.mark.parametrize(
        ("filtered", "logits", "first", "last"),
        [
            ({"top_p": 0.9}, [3.0, 2.0, 1.0, 0.0], 4, 3),
            # Likelihoods of 1/4, 1/9 and 1/16 of the best; their roots at temperature 2.
            ({"min_p": 0.3}, [0.0, -1.3863, -2.1972, -2.7726], 3, 1),
        ],
    )
    def test_temperature_first_or_last(
        self, filtered: dict[str, float], logits: list[float], first: int, last: int
    ) -> None:
        """Two filter the flattened distribution, two the model's own."""
        counts = {}
        for name, preset in PRESETS.items():
            row = run(preset(**filtered, **{TEMPERATURE[name]: 2.0}), logits)
            counts[name] = sum(logit > float("-inf") for logit in row)

        assert {"transformers": first, "vllm": first, "mlx": last, "llama_cpp": last} == counts

    def test_penalties_and_the_prompt(self) -> None:
        """After the prompt [0] and a generated 1: which system penalises which token."""
        history = after([0, 1], prompt=1)
        rows = {
            "vllm": run(presets.vllm(presence_penalty=1.0, frequency_penalty=0.5), [0.0, 0.0, 0.0], history),
            "mlx": run(presets.mlx(presence_penalty=1.0, frequency_penalty=0.5), [0.0, 0.0, 0.0], history),
            "llama_cpp": run(
                presets.llama_cpp(penalty_present=1.0, penalty_freq=0.5), [0.0, 0.0, 0.0], history
            ),
        }

        assert {
            "vllm": [0.0, -1.5, 0.0],
            "mlx": [-1.5, -1.5, 0.0],
            "llama_cpp": [-1.5, -1.5, 0.0],
        } == rows

    @pytest.mark.parametrize(
        ("chain", "expected"),
        [
            (presets.transformers(repetition_penalty=2.0), [1.0, 1.0, 2.0]),
            (presets.vllm(repetition_penalty=2.0), [1.0, 1.0, 2.0]),
            (presets.mlx(repetition_penalty=2.0), [2.0, 1.0, 2.0]),
            (presets.mlx(repetition_penalty=2.0, repetition_context_size=30), [1.0, 1.0, 2.0]),
            (presets.llama_cpp(penalty_repeat=2.0), [1.0, 1.0, 2.0]),
            (presets.llama_cpp(penalty_repeat=2.0, penalty_last_n=20), [2.0, 1.0, 2.0]),
            (presets.llama_cpp(penalty_repeat=2.0, penalty_last_n=-1), [1.0, 1.0, 2.0]),
        ],
    )
    def test_how_far_a_repetition_penalty_looks_back(self, chain: Chain, expected: list[float]) -> None:
        """After one 0 and twenty 1: the last 20 tokens are mlx's default, 64 llama.cpp's."""
        assert expected == run(chain, [2.0, 2.0, 2.0], after([0] + [1] * 20, prompt=1))


class TestOrder:
    def test_transformers(self) -> None:
        """Every stage at once."""
        chain = presets.transformers(
            sequence_bias={(1, 2): 1.0},
            repetition_penalty=1.1,
            no_repeat_ngram_size=3,
            bad_words_ids=[[4]],
            eos_token_id=2,
            min_new_tokens=3,
            suppress_tokens=[5],
            begin_suppress_tokens=[6],
            temperature=0.7,
            top_h=0.5,
            top_k=9,
            top_p=0.9,
            min_p=0.1,
            typical_p=0.9,
            epsilon_cutoff=0.01,
            eta_cutoff=0.01,
            renormalize_logits=True,
        )

        assert [
            "SequenceBias", "RepetitionPenalty", "NoRepeatNgram", "BadWords", "MinNewTokens",
            "SuppressTokens", "SuppressFirst", "Temperature", "TopH", "TopK", "TopP", "MinP", "Typical",
            "EpsilonCutoff", "EtaCutoff", "Renormalise",
        ] == stages(chain)  # fmt: skip

    def test_vllm(self) -> None:
        """Every stage at once."""
        chain = presets.vllm(
            allowed_token_ids=[1, 2],
            bad_words=[[4]],
            stop_token_ids=[2],
            min_tokens=3,
            logit_bias={3: 1.0},
            repetition_penalty=1.1,
            frequency_penalty=0.1,
            presence_penalty=0.1,
            temperature=0.7,
            min_p=0.1,
            top_k=9,
            top_p=0.9,
        )

        assert [
            "AllowedTokens", "BadWords", "MinNewTokens", "LogitBias", "RepetitionPenalty", "FrequencyPenalty",
            "PresencePenalty", "Temperature", "MinP", "TopK", "TopP",
        ] == stages(chain)  # fmt: skip

    def test_llama_cpp(self) -> None:
        """Every stage at once."""
        options: dict[str, Any] = {
            "logit_bias": {3: 1.0},
            "penalty_repeat": 1.1,
            "penalty_freq": 0.1,
            "penalty_present": 0.1,
            "dry_multiplier": 0.8,
            "top_n_sigma": 1.0,
            "top_k": 9,
            "typ_p": 0.9,
            "top_p": 0.9,
            "min_p": 0.1,
            "xtc_probability": 0.5,
            "temp": 0.8,
        }
        expected = [
            "LogitBias", "RepetitionPenalty", "FrequencyPenalty", "PresencePenalty", "DRY", "TopNSigma",
            "TopK", "Typical", "TopP", "MinP", "XTC",
        ]  # fmt: skip

        assert [*expected, "Temperature"] == stages(presets.llama_cpp(**options))
        assert [*expected, "DynamicTemperature"] == stages(presets.llama_cpp(**options, dynatemp_range=0.2))

    def test_mlx(self) -> None:
        """Every stage at once."""
        chain = presets.mlx(
            logit_bias={3: 1.0},
            repetition_penalty=1.1,
            presence_penalty=0.1,
            frequency_penalty=0.1,
            temp=0.7,
            top_p=0.9,
            min_p=0.1,
            top_k=9,
            xtc_probability=0.5,
            xtc_special_tokens=[2],
        )

        assert [
            "LogitBias", "RepetitionPenalty", "PresencePenalty", "FrequencyPenalty", "TopP", "MinP", "XTC",
            "TopK", "Temperature",
        ] == stages(chain)  # fmt: skip

    def test_bad_words_of_vllm_begin_in_the_answer(self) -> None:
        """As its penalties of presence and frequency do."""
        chain = presets.vllm(bad_words=[[1, 2]])
        logits = torch.zeros(1, 1, 4)

        assert torch.equal(logits, chain(logits, after([1], prompt=1)))
        assert [0, 1, 3] == (chain(logits, after([0, 1], prompt=1))[0, 0] == 0).nonzero().flatten().tolist()
        words = presets.transformers(bad_words_ids=[[1, 2]])
        assert not words(logits, after([1], prompt=1))[0, 0, 2].isfinite()

    def test_penalties_of_mlx_cover_all_tokens_at_0(self) -> None:
        """``tokens[-0:]`` is all of them."""
        chain = presets.mlx(repetition_penalty=2.0, repetition_context_size=0)

        assert [1.0, 2.0] == chain(torch.tensor([[[2.0, 2.0]]]), after([0], prompt=1))[0, 0].tolist()

    @settings(deadline=None)
    @given(data=st.data())
    def test_transformers_is_what_a_config_comes_to(self, data: st.DataObject) -> None:
        """The same names and values in a ``GenerationConfig`` make the same chain."""
        shared = sorted(set(FIELDS) & set(presets.transformers.__kwdefaults__ or {}))
        selected = data.draw(st.lists(st.sampled_from(shared), unique=True))
        fields: dict[str, Any] = {"top_k": 0, "eos_token_id": 3}
        fields |= {name: data.draw(FIELDS[name]) for name in selected}
        config = GenerationConfig(do_sample=True, **fields)

        assert repr(from_generation_config(config).processors) == repr(presets.transformers(**fields))


class TestOff:
    @pytest.mark.parametrize(
        "chain",
        [
            presets.transformers(),
            presets.transformers(min_new_tokens=0, typical_p=1.0, epsilon_cutoff=0.0, eta_cutoff=1.0),
            presets.transformers(top_p=1, epsilon_cutoff=1, eta_cutoff=0),
            presets.vllm(),
            presets.vllm(top_k=-1),
            presets.llama_cpp(),
            presets.llama_cpp(penalty_last_n=0, penalty_repeat=1.3, penalty_freq=1.0, penalty_present=1.0),
            presets.llama_cpp(top_k=-1, top_n_sigma=0.0, dry_multiplier=0.5, dry_penalty_last_n=0),
            presets.llama_cpp(xtc_probability=0.5, xtc_threshold=0.6),
            presets.llama_cpp(xtc_probability=0.5, xtc_threshold=1.0, top_p=1, typ_p=1, min_p=0, temp=1),
            presets.mlx(),
            presets.mlx(top_p=1.0, repetition_penalty=0.0),
            presets.mlx(presence_penalty=0, frequency_penalty=None, min_p=0, top_k=0, xtc_probability=0),
        ],
    )
    def test_what_is_off_is_not_in_the_chain(self, chain: Chain) -> None:
        """Each system's own off-values."""
        assert () == chain.processors

    @pytest.mark.parametrize(
        "make",
        [lambda: presets.vllm(temperature=0), lambda: presets.llama_cpp(temp=0), lambda: presets.mlx(temp=0)],
    )
    def test_temperature_0_is_greedy(self, make: Callable[[], Chain]) -> None:
        """The message says which."""
        with pytest.raises(ValueError, match=r"use Greedy\(\)"):
            make()

    @pytest.mark.parametrize("name", PRESETS)
    @pytest.mark.parametrize(
        "options",
        [
            {"top_p": 1.5},
            {"top_p": -0.5},
            {"top_p": NAN},
            {"min_p": -0.1},
            {"min_p": 2.0},
            {"min_p": NAN},
            {"repetition_penalty": -1.0},
            {"top_k": 2.5},
        ],
        ids=str,
    )
    def test_nonsense_is_not_off(self, name: str, options: dict[str, float]) -> None:
        """Refused, also where that system ignores it."""
        if name == "llama_cpp" and "repetition_penalty" in options:
            options = {"penalty_repeat": -1.0}

        with pytest.raises((TypeError, ValueError), match=r"^'\w+' must be "):
            PRESETS[name](**options)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: presets.transformers(epsilon_cutoff=2.0),
            lambda: presets.transformers(eta_cutoff=-0.1),
            lambda: presets.transformers(typical_p=1.1),
            lambda: presets.transformers(top_k=-1),
            lambda: presets.transformers(no_repeat_ngram_size=-1),
            lambda: presets.transformers(min_new_tokens=-1),
            lambda: presets.vllm(top_k=-2),
            lambda: presets.vllm(temperature=-1.0),
            lambda: presets.vllm(temperature=NAN),
            lambda: presets.llama_cpp(xtc_probability=-1.0),
            lambda: presets.llama_cpp(xtc_probability=0.5, xtc_threshold=7.0),
            lambda: presets.llama_cpp(xtc_probability=0.5, xtc_threshold=-0.1),
            lambda: presets.llama_cpp(typ_p=7.0),
            lambda: presets.llama_cpp(top_n_sigma=NAN),
            lambda: presets.llama_cpp(dry_multiplier=-1.0),
            lambda: presets.llama_cpp(penalty_repeat=1.1, penalty_last_n=-5),
            lambda: presets.llama_cpp(dynatemp_range=-0.5),
            lambda: presets.mlx(top_k=-1),
            lambda: presets.mlx(xtc_probability=1.5),
        ],
    )
    def test_nonsense_of_one_system_is_not_off(self, make: Callable[[], Chain]) -> None:
        """A stage that is not at its off-value is made, and refuses."""
        with pytest.raises(ValueError, match=r"^'\w+' must be "):
            make()

    @pytest.mark.parametrize("given", [[0.5, 0.9], torch.tensor([0.5, 0.9]), torch.tensor(0.5), "0.5", True])
    @pytest.mark.parametrize("name", PRESETS)
    def test_every_number_is_one_for_all_rows(self, name: str, given: Any) -> None:
        """Per-row parameters are refused by name: those systems have none."""
        # What lets every stage stand that has numbers beside its own.
        on: dict[str, dict[str, Any]] = {
            "llama_cpp": {"penalty_repeat": 1.1, "dry_multiplier": 1.0, "xtc_probability": 0.5, "temp": 2.0},
            "mlx": {
                "repetition_penalty": 1.1,
                "presence_penalty": 0.1,
                "frequency_penalty": 0.1,
                "xtc_probability": 0.5,
            },
        }
        extra = on.get(name, {}) | ({"dynatemp_range": 0.5} if name == "llama_cpp" else {})
        for option, default in (PRESETS[name].__kwdefaults__ or {}).items():
            collection = isinstance(default, tuple) or option in NOT_NUMBERS
            # A stage counts its smallest set itself, and says so.
            if not collection and option not in ("min_keep", "min_tokens_to_keep"):
                with pytest.raises(TypeError, match=f"^'{option}' must be one number: got "):
                    PRESETS[name](**extra | {option: given})

    @pytest.mark.parametrize(
        ("temp", "spread"), [(0.0, 0.5), (0.5, 0.5), (0.5, 0.7), (-1.0, 0.5), (0.5, NAN)]
    )
    def test_llama_cpp_has_no_dynamic_temperature_down_to_0(self, temp: float, spread: float) -> None:
        """It would divide by nearly nothing."""
        with pytest.raises(ValueError, match=r"'dynatemp_range' must be >= 0 \(0 is off\) and < 'temp'"):
            presets.llama_cpp(temp=temp, dynatemp_range=spread)

    def test_vllm_raises_tiny_temperatures(self) -> None:
        """To 0.01."""
        assert "Chain(processors=(Temperature(temperature=0.01),))" == repr(presets.vllm(temperature=0.001))

    def test_options_reach_their_stages(self) -> None:
        """What goes with a stage goes into it, and nothing else does."""
        llama_cpp = presets.llama_cpp(
            dry_multiplier=0.8,
            dry_base=1.5,
            dry_allowed_length=3,
            dry_penalty_last_n=90,
            dry_sequence_breakers=[7],
            typ_p=0.9,
            top_p=0.9,
            min_p=0.1,
            min_keep=4,
        )
        dry, typical, top_p, min_p = llama_cpp.processors

        assert repr(DRY(0.8, 1.5, 3, [7], window=90)) == repr(dry)
        assert [4, 4, 4] == [stage.min_tokens for stage in (typical, top_p, min_p)]  # type: ignore[attr-defined]
        mlx = presets.mlx(min_p=0.1, min_tokens_to_keep=3, xtc_probability=0.5, xtc_special_tokens=[2, 1])
        assert repr(MinP(0.1, 3) | XTC(0.5, 0.1, [2, 1])) == repr(mlx)

    def test_llama_cpp_spreads_a_dynamic_temperature(self) -> None:
        """Range below and above."""
        expected = "DynamicTemperature(low=0.5, high=1.5, exponent=2.0)"

        assert expected in repr(presets.llama_cpp(dynatemp_range=0.5, dynatemp_exponent=2.0))
