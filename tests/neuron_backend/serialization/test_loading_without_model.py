"""Saved decoders that are loaded and run without building their model."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.decoding.file_digest import file_sha256
from decodekit.neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from decodekit.neuron_backend.artifacts.manifest import BUFFERS, CONSTANTS, PROGRAMS, Manifest, weights_file
from decodekit.neuron_backend.artifacts.stored_weights import StoredWeights
from decodekit.neuron_backend.serialization.saving import blueprint_of
from decodekit.testing import check_decoder

MODELS: dict[str, dict[str, Any]] = {
    # Fused projections, plain and in int8; tied weights; biases.
    "llama": {},
    "qwen2": {"weights": "int8"},
    "opt": {"dtype": "bfloat16"},
}


@pytest.fixture(
    scope="module",
    params=["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name != "llama")],
)
def compiled(request: pytest.FixtureRequest, tiny_model: Callable[..., PreTrainedModel]) -> CompiledDecoder:
    """A decoder with one program, of width 2."""
    return compile_decoder(
        tiny_model(request.param), max_length=32, widths=(2,), target="cpu", **MODELS[request.param]
    )


@pytest.fixture
def saved(compiled: CompiledDecoder, tmp_path: Path) -> Path:
    """The folder of that decoder."""
    compiled.save(tmp_path / "decoder")
    return tmp_path / "decoder"


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building a model fails."""

    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr(torch.nn.Module, "__init__", fail)


def logits(decoder: CompiledDecoder) -> list[Tensor]:
    """Logits of a few forwards, one of them after a rewind."""
    ids = torch.randint(61, (3, 1, 2), generator=torch.Generator().manual_seed(1))
    return [
        decoder.forward(each, torch.tensor([at])).clone() for each, at in zip(ids, (0, 2, 1), strict=True)
    ]


def altered(folder: Path, **changes: object) -> None:
    """Change the blueprint and make the manifest consistent again."""
    manifest = Manifest.read(folder)
    assert manifest.blueprint is not None
    attrs.evolve(manifest, blueprint=attrs.evolve(manifest.blueprint, **changes)).write(folder)


def with_constants(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Change the constants and make the manifest consistent again."""
    save_file(
        {name: tensor.contiguous() for name, tensor in change(load_file(folder / CONSTANTS)).items()},
        folder / CONSTANTS,
    )
    manifest = Manifest.read(folder)
    attrs.evolve(manifest, files={**manifest.files, CONSTANTS: file_sha256(folder / CONSTANTS)}).write(folder)


class TestWithoutModel:
    """What works without a model."""

    @pytest.mark.usefixtures("no_model")
    def test_forwards_give_the_same_bits(self, compiled: CompiledDecoder, saved: Path) -> None:
        """Loaded and run without a module, let alone a model."""
        loaded = load_decoder(saved)

        assert ("cpu", False, compiled.shape) == (loaded.target, loaded.compiled, loaded.shape)
        assert all(map(torch.equal, logits(compiled), logits(loaded)))

    @pytest.mark.mostly_slow(every=3)
    def test_nothing_imports_the_model_library(self, saved: Path) -> None:
        """Checked in a separate process."""
        code = (
            "import sys; from decodekit.decoding import Generator, MaxNewTokens;"
            "from decodekit.neuron_backend import load_decoder;"
            "generator = Generator(load_decoder(sys.argv[1]), stop=MaxNewTokens(3));"
            "print(len(generator([1, 2, 3]).ids[0]), 'transformers' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, saved], capture_output=True, text=True, check=True, timeout=300
        )

        assert "3 False\n" == done.stdout

    def test_it_is_a_decoder(self, saved: Path) -> None:
        """It passes the contract checks."""
        check_decoder(load_decoder(saved))


class TestLateModel:
    """The model, built when it is first used."""

    def test_it_agrees_with_the_programs(self, saved: Path) -> None:
        """It is built from what was read on loading: the folder may be gone."""
        loaded = load_decoder(saved)
        shutil.rmtree(saved)

        loaded.compare("the loaded program")

    def test_it_is_the_saved_one(self, compiled: CompiledDecoder, saved: Path) -> None:
        """Module by module, over the memory that the programs use."""
        loaded = load_decoder(saved)
        model, expected = loaded.step.model, compiled.step.model

        assert str(expected) == str(model)
        assert not model.training
        assert compiled.weights == loaded.weights
        state = model.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in expected.state_dict().items())

    def test_a_loaded_decoder_is_saved_as_it_was(self, saved: Path, tmp_path: Path) -> None:
        """Every fact and every file, except that a config without a dtype gets one."""
        load_decoder(saved).save(tmp_path / "copy")

        facts = []
        for folder in (saved, tmp_path / "copy"):
            manifest = Manifest.read(folder)
            config = json.loads((folder / "config.json").read_text())
            config.pop("dtype", None)
            facts.append((attrs.evolve(manifest, files={**manifest.files, "config.json": ""}), config))
        assert facts[0] == facts[1]


class TestMismatch:
    """Folders that differ from what was saved."""

    def test_a_changed_number_is_refused(self, saved: Path) -> None:
        """A flipped bit in the last weight."""
        path = saved / weights_file(bool(Manifest.read(saved).quantized))
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

        with pytest.raises(ValueError, match=f"got a changed .*{path.name}"):
            load_decoder(saved)

    @pytest.mark.parametrize("change", ["layers", "masks", "architecture", "cache_dtype"])
    def test_a_forged_blueprint_is_refused(self, change: str, saved: Path) -> None:
        """Programs carry a fingerprint of the cache and the model that they were compiled for."""
        plan = Manifest.read(saved).blueprint
        assert plan is not None
        heads, *rest = plan.layers[0]
        forged = {
            "layers": [[heads + 1, *rest], *plan.layers[1:]],
            "masks": plan.masks.replace("None", "4"),
            "architecture": "LlamaForCausalLM2",
            "cache_dtype": "float64",
        }
        altered(saved, **{change: forged[change]})

        with pytest.raises(ValueError, match="a program must have been compiled for the decoder's shape"):
            load_decoder(saved)

    @pytest.mark.parametrize("change", ["swapped", "dropped", "none", "doubled"])
    def test_another_order_of_fused_projections_is_refused(self, change: str, saved: Path) -> None:
        """Programs read their rows by number: queries for keys would give text, and the wrong one."""
        plan = Manifest.read(saved).blueprint
        assert plan is not None
        first, *rest = plan.fused
        forged = {
            "swapped": [[first[1], first[0], *first[2:]], *rest],
            "dropped": [first[:-1], *rest],
            "none": [],
            "doubled": [[*first, first[0]], *rest],
        }
        altered(saved, fused=forged[change])

        with pytest.raises(ValueError, match="a program must have been compiled for the decoder's shape"):
            load_decoder(saved)

    def test_constants_named_like_weights_are_refused(self, saved: Path) -> None:
        """A program would read beyond a smaller one's memory."""
        name = f"{PROGRAMS}width_2.zip/model.{next(iter(Manifest.read(saved).weights))}"
        with_constants(saved, lambda constants: constants | {name: torch.ones(1)})

        with pytest.raises(ValueError, match="constants must be those that it was compiled with"):
            load_decoder(saved)

    @pytest.mark.parametrize(
        "change",
        [lambda tensor: tensor + 1, lambda tensor: tensor[None], lambda tensor: tensor.double()],
        ids=["values", "shape", "dtype"],
    )
    @pytest.mark.parametrize("owner", [PROGRAMS, BUFFERS])
    def test_changed_constants_are_refused(
        self, owner: str, change: Callable[[Tensor], Tensor], saved: Path
    ) -> None:
        """Those of a program, and buffers that it was compiled with."""
        with_constants(
            saved,
            lambda constants: {
                name: change(tensor) if name.startswith(owner) else tensor
                for name, tensor in constants.items()
            },
        )
        if any(name.startswith(owner) for name in load_file(saved / CONSTANTS)):
            with pytest.raises(ValueError, match="a program"):
                load_decoder(saved)

    def test_other_ties_are_refused(self, saved: Path) -> None:
        """A tie of a weight that is not the model's, or to a missing one."""
        for ties in ({"more.weight": next(iter(Manifest.read(saved).weights))}, {"more.weight": "missing"}):
            altered(saved, ties=ties)

            with pytest.raises(ValueError, match=r"a saved decoder's weights must fit its decoder\.json"):
                load_decoder(saved)


@pytest.mark.slow
def test_one_that_must_be_compiled_again_gets_its_model(
    compiled: CompiledDecoder, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that did not compile the programs."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "another machine"))

    loaded = load_decoder(saved)

    assert loaded.compiled
    torch.testing.assert_close(logits(compiled), logits(loaded), atol=1e-2, rtol=1e-2)


ARCHITECTURES = ("llama", "mistral", "gpt2", "gpt_neox", "opt", "phi", "mixtral", "gemma2", "falcon")


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_blueprint_says_where_every_weight_is(
    name: str, tiny_model: Callable[..., PreTrainedModel], tmp_path: Path
) -> None:
    """The file and the ties together make up the state dict, or there is no blueprint."""
    decoder = CompiledDecoder(tiny_model(name), max_length=32, widths=(1,))
    decoder.save(tmp_path / "eager")
    path = tmp_path / "eager" / "model.safetensors"

    plan = blueprint_of(decoder, path)

    state = decoder.step.model.state_dict()
    if plan is None:
        assert set(load_file(path)) != set(state)
        return
    stored = StoredWeights.read(path, {}).tensors
    found = {**stored, **{each: stored[same] for each, same in plan.ties.items()}}
    assert set(state) == set(found)
    assert all(torch.equal(tensor, found[each]) for each, tensor in state.items())
    assert decoder.cache.tensors[0].shape[1] == plan.geometry(61).layers[0].key_heads
    assert file_sha256(path) == StoredWeights.read(path, {}).sha256()
