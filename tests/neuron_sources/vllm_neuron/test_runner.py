"""
What of a chain runs in vLLM Neuron's runner, tried on the sources of a checkout.

DECODEKIT_VLLM_NEURON is the folder of a checkout of vllm-project/vllm-neuron; a5ef7c8 was read.
"""

import ast
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.processors import (
    XTC,
    FrequencyPenalty,
    Grammar,
    NoRepeatNgram,
    RepetitionPenalty,
    SuppressTokens,
    attach_to_vllm_neuron,
    to_vllm,
)
from decodekit.testing import ScriptedDecoder

from .runner_harness import RUNNER, Bag, Engine, TinyModel, runner_module

pytestmark = pytest.mark.neuron_sources

CHAIN = RepetitionPenalty(1.5) | FrequencyPenalty(0.7) | NoRepeatNgram(2) | SuppressTokens([3])
CHAINS: dict[str, Any] = {
    "penalties": CHAIN,
    "no token twice": NoRepeatNgram(1),
}
PROMPTS = {"first": [1, 2, 3], "second": [4, 5, 4, 5, 4], "third": [9]}


def wants(**options: Any) -> Bag:
    """What a request asks for."""
    return Bag(**{"seed": 0, "extra_args": None, "top_k": 0, "top_p": 1.0, "temperature": 0.0, **options})


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder of the sources."""
    folder = os.environ.get("DECODEKIT_VLLM_NEURON")
    if not folder:
        pytest.skip("DECODEKIT_VLLM_NEURON must be the folder of a checkout of vllm-project/vllm-neuron")
    return Path(folder)


@pytest.fixture
def engine(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Engines over the checkout's runner."""
    module = runner_module(checkout, monkeypatch)
    return lambda samples=False, **options: Engine(module, samples, **options)


def served(engine: Engine, params: Any = None) -> dict[str, list[int]]:
    """Three requests that join one after another; the first leaves early, and a row is moved."""
    params = wants() if params is None else params
    engine.step(new=("first", PROMPTS["first"], params))
    engine.step(running=["first"])
    engine.step(new=("second", PROMPTS["second"], params))
    engine.step(new=("third", PROMPTS["third"], params))
    for _ in range(3):
        engine.step(running=["first", "second", "third"])
    for left in ("first", "", ""):
        engine.step(running=["second", "third"], finished=[left])
    return engine.texts


def alone(chain: Any, name: str, tokens: int) -> list[int]:
    """The text of one request by plain decoding over the same table, without vLLM."""
    model = TinyModel(samples=False)
    decoder = ScriptedDecoder(model.table, line=model.line)
    stop = MaxNewTokens(tokens)
    return Generator(decoder, processors=chain, stop=stop)([PROMPTS[name]]).ids[0]


class TestHostSampling:
    @pytest.mark.parametrize("name", CHAINS)
    def test_a_chain_gives_each_request_the_text_it_has_alone(
        self, engine: Callable[..., Engine], name: str
    ) -> None:
        """Whatever joins, leaves or moves beside it, prefills included."""
        chain, run = CHAINS[name], engine()
        run.load()
        attach_to_vllm_neuron(run.runner, chain)
        texts = served(run)

        assert {text: alone(chain, text, len(ids)) for text, ids in texts.items()} == texts
        assert {text: alone(None, text, len(ids)) for text, ids in texts.items()} != texts

    def test_a_seed_decides_what_a_stage_draws(self, engine: Callable[..., Engine]) -> None:
        """Requests of one seed draw the same, in every run; another seed draws otherwise."""
        texts = []
        for seed in (1, 1, 2):
            run = engine()
            run.load()
            attach_to_vllm_neuron(run.runner, XTC(threshold=0.01, probability=0.5))
            texts.append(served(run, wants(seed=seed)))

        assert texts[0] == texts[1] != texts[2]

    def test_a_request_may_switch_it_off(self, engine: Callable[..., Engine]) -> None:
        """Its text is that without a chain."""
        run, plain = engine(), engine()
        for one in (run, plain):
            one.load()
        attach_to_vllm_neuron(run.runner, CHAIN)

        assert served(plain) == served(run, wants(extra_args={"decodekit": False}))

    def test_a_grammar_runs_too(self, engine: Callable[..., Engine]) -> None:
        """One for all requests: None lets everything pass."""
        run, plain = engine(), engine()
        for one in (run, plain):
            one.load()
        attach_to_vllm_neuron(run.runner, Grammar(None))

        assert served(plain) == served(run)


class TestDeviceSampling:
    def test_a_chain_is_refused(self, engine: Callable[..., Engine]) -> None:
        """The default of the plugin: the runner gets tokens."""
        run = engine(samples=True)
        run.load()

        with pytest.raises(ValueError, match=r"must sample on the host: .*'on_device_sampling_config': None"):
            attach_to_vllm_neuron(run.runner, CHAIN)
        assert [] == run.runner.input_batch.logitsprocs.all

    def test_no_processor_would_be_called(self, engine: Callable[..., Engine]) -> None:
        """One that is put there all the same is told of the rows, but never sees logits."""
        run = engine(samples=True)
        run.load()
        told: list[Any] = []
        processor = Bag(update_state=told.append, apply=None)
        run.runner.input_batch.logitsprocs.non_argmax_invariant.append(processor)

        assert served(run)
        assert told

    def test_three_numbers_of_a_request_reach_the_device(self, engine: Callable[..., Engine]) -> None:
        """Top-k, capped at 256, top-p and temperature; greedy is top-k 1."""
        run = engine(samples=True)
        run.load()
        run.step(new=("first", [1, 2], wants(temperature=0.7, top_k=9999, top_p=0.9, min_p=0.3)))

        assert [[256.0, pytest.approx(0.9), pytest.approx(0.7)]] == run.model.sampling_params.tolist()


class TestRefusals:
    def test_fused_speculation(self, engine: Callable[..., Engine]) -> None:
        """Its program returns accepted tokens."""
        run = engine(speculative=Bag(method="eagle"))
        run.load()

        with pytest.raises(ValueError, match=r"must not speculate: .* one fused program"):
            attach_to_vllm_neuron(run.runner, CHAIN)

    def test_a_runner_without_a_model(self, engine: Callable[..., Engine]) -> None:
        """How it samples is known when the model has been loaded."""
        with pytest.raises(ValueError, match=r"call attach_to_vllm_neuron after load_model\(\)"):
            attach_to_vllm_neuron(engine().runner, CHAIN)

    def test_to_vllm_names_the_alternative(self) -> None:
        """The vLLM that the plugin requires lacks the interface."""
        with pytest.raises(ImportError, match=r"vLLM Neuron 0\.2 .*attach_to_vllm_neuron"):
            to_vllm(CHAIN)


class TestSources:
    """Facts that the above depends on."""

    def test_the_batch_is_made_without_processors(self, checkout: Path) -> None:
        """NeuronxDistributedModelRunner.__init__: the user's logits_processors reach nothing."""
        tree = ast.parse((checkout / RUNNER).read_text())
        (made,) = (
            node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) == "InputBatch"
        )
        assert "logitsprocs" not in {keyword.arg for keyword in made.keywords}
        assert "logitsprocs" not in (checkout / RUNNER).read_text()

    def test_the_vllm_that_it_requires(self, checkout: Path) -> None:
        """Which the stubs are written after."""
        assert "vllm==0.11.0" in (checkout / "requirements/core.txt").read_text().splitlines()

    def test_device_sampling_is_the_default(self, checkout: Path) -> None:
        """_get_default_neuron_config, and fused speculation wherever a draft model is given."""
        loader = (checkout / "vllm_neuron/worker/neuronx_distributed_model_loader.py").read_text()
        tree = ast.parse(loader)
        (default,) = (
            node for node in tree.body if getattr(node, "name", None) == "_get_default_neuron_config"
        )
        source = ast.unparse(default)
        assert "OnDeviceSamplingConfig(dynamic=True, deterministic=False)" in source
        assert "neuron_config['enable_fused_speculation'] = True" in source


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""
