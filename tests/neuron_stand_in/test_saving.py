"""Saving and loading traced decoders."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import attrs
import pytest

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.decoding.cache.slots import Slots
from decodekit.decoding.file_digest import file_sha256
from decodekit.neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from decodekit.neuron_backend.artifacts.manifest import Manifest
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget
from decodekit.neuron_backend.targets.target import NOT_SAVED
from decodekit.processors import Temperature

from ..neuron_backend.on_device import compiler_forbidden

PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60, 1, 30]]


def text(decoder: CompiledDecoder) -> list[list[int]]:
    """Text generated with a decoder, after its record of fed tokens is cleared."""
    Slots.of(decoder).forget()
    return Generator(decoder, stop=MaxNewTokens(40))(PROMPTS).ids


@pytest.fixture
def saved(built, tmp_path) -> Path:
    """The folder of a traced decoder."""
    built.decoder.save(tmp_path / "decoder")
    return tmp_path / "decoder"


@pytest.fixture
def no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing fails."""
    import torch_neuronx

    monkeypatch.setattr(torch_neuronx, "trace", None)
    # Not installed on every device.
    if importlib.util.find_spec("neuronx_distributed") is not None:
        import neuronx_distributed

        monkeypatch.setattr(neuronx_distributed.ModelBuilder, "trace", None)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that has compiled nothing."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "another machine"))


def rewrite(folder: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    """Change a program and make decoder.json consistent again, as an attacker would."""
    path = folder / "programs" / name
    path.write_bytes(change(path.read_bytes()))
    manifest = Manifest.read(folder)
    files = {file: file_sha256(folder / file) for file in manifest.files}
    attrs.evolve(manifest, files=files).write(folder)


def test_a_saved_decoder_is_loaded(pair, tmp_path, request):
    """Nothing is traced or compiled, and it has its own cache."""
    pair.compiled.save(tmp_path / "decoder")
    expected = text(pair.compiled)
    request.getfixturevalue("no_tracing")

    with compiler_forbidden():
        loaded = load_decoder(tmp_path / "decoder")

    assert ("neuron-traced", pair.compiled.compiler.way) == (loaded.target, loaded.compiler.way)
    assert not loaded.compiled
    assert expected == text(loaded) == text(pair.compiled)


@pytest.mark.stand_in
class TestRoundTrip:
    """Saving and loading."""

    def test_into_another_process(self, built, saved, modules):
        """It traces nothing and generates the same text."""
        code = f"""
            import json, sys
            import torch_neuronx
            from decodekit.decoding import Generator, MaxNewTokens
            from decodekit.neuron_backend import load_decoder
            torch_neuronx.trace = None
            if {built.decoder.compiler.way!r} == "nxd":
                import neuronx_distributed
                neuronx_distributed.ModelBuilder.trace = None
            decoder = load_decoder({str(saved)!r})
            ids = Generator(decoder, stop=MaxNewTokens(40))({PROMPTS!r}).ids
            print(json.dumps([decoder.target, decoder.compiler.way, decoder.compiled, ids]))
        """
        paths = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )

        assert 0 == process.returncode, process.stderr
        expected = ["neuron-traced", built.decoder.compiler.way, False, text(built.decoder)]
        assert expected == json.loads(process.stdout.splitlines()[-1])

    @pytest.mark.usefixtures("no_tracing")
    def test_with_sampling_that_stays_on_the_host(self, saved):
        """No program samples, and a load compiles none."""
        loaded = load_decoder(saved, processors=Temperature(0.8))

        assert NOT_SAVED in str(loaded.explain())

    @pytest.mark.usefixtures("no_tracing")
    def test_can_be_saved_again(self, saved, tmp_path):
        """A loaded decoder keeps its programs."""
        load_decoder(saved).save(tmp_path / "copy")

        names = sorted(path.name for path in (saved / "programs").iterdir())
        assert 2 == len(names)
        for name in names:
            assert (saved / "programs" / name).read_bytes() == (
                tmp_path / "copy" / "programs" / name
            ).read_bytes()


@pytest.mark.stand_in
def test_programs_hold_no_weights_with_nxd(tiny_model, tmp_path):
    """The folder has them once, in safetensors."""
    wide = compile_decoder(
        tiny_model("llama"), batch_size=1, max_length=32, widths=(1,), target=TracedTarget(way="nxd")
    )
    wide.save(tmp_path / "decoder")

    stored = (tmp_path / "decoder/programs/nxd_model.pt").read_bytes()

    head = wide.step.model.lm_head.weight.detach().numpy().tobytes()
    assert head in (tmp_path / "decoder/model.safetensors").read_bytes()
    assert head not in stored


@pytest.mark.stand_in
class TestTrust:
    """Which native code is run, and which compiled again."""

    @pytest.mark.usefixtures("elsewhere")
    def test_programs_of_others_are_compiled_again(self, saved, built):
        """From the weights; the folder's programs are not even parsed."""
        (name,) = (path.name for path in (saved / "programs").iterdir() if path.suffix == ".pt")
        rewrite(saved, name, lambda _: b"not to be run")

        loaded = load_decoder(saved)

        assert loaded.compiled
        assert text(built.decoder) == text(loaded)

    @pytest.mark.usefixtures("elsewhere", "no_tracing")
    def test_can_be_given(self, saved, built):
        """trust_programs runs the folder's programs."""
        loaded = load_decoder(saved, trust_programs=True)

        assert not loaded.compiled
        assert text(built.decoder) == text(loaded)


@pytest.mark.stand_in
class TestMismatch:
    """Programs that do not fit."""

    @pytest.mark.parametrize("what", ["fingerprint", "versions"])
    def test_is_refused(self, what, saved):
        """With another shape, other weights, or another release."""

        def change(content: bytes) -> bytes:
            return json.dumps({**json.loads(content), what: "other"}).encode()

        rewrite(saved, "traced.json", change)

        with pytest.raises(ValueError, match=f"their {what} must be .*: got other"):
            load_decoder(saved, trust_programs=True)

    def test_versions_are_those_of_the_packages(self, saved, built):
        """neuronx_distributed has none among its names."""
        (facts,) = (saved / "programs").glob("traced.json")
        versions = json.loads(facts.read_bytes())["versions"]
        packages = [
            "torch-neuronx",
            *(["neuronx-distributed"] if built.decoder.compiler.way == "nxd" else []),
        ]

        assert {"neuronx-cc": "none"} | {name: version(name) for name in packages} == versions

    def test_of_torch_is_refused_before_anything_is_read(self, saved):
        """The error names the version that compiled them."""
        manifest = Manifest.read(saved)
        attrs.evolve(manifest, versions={**manifest.versions, "torch": "2.8.0"}).write(saved)

        with pytest.raises(ValueError, match=r"by the torch that traced them, 2\.8\.0: got"):
            load_decoder(saved)

    def test_a_way_that_is_not_installed_is_refused(self, saved, built, monkeypatch):
        """Programs built with NxD are not run without it, nor the reverse."""
        import neuronx_distributed
        import torch_neuronx

        nxd = built.decoder.compiler.way == "nxd"
        monkeypatch.delattr(*((neuronx_distributed, "NxDModel") if nxd else (torch_neuronx, "trace")))

        with pytest.raises(
            ValueError, match="needs a neuronx-distributed" if nxd else "got none that has trace"
        ):
            load_decoder(saved)
