import copy
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from decodekit.neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from decodekit.neuron_backend.artifacts.manifest import Manifest
from decodekit.neuron_backend.models.fused_projections import fuse_projections
from decodekit.neuron_backend.serialization import saving


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def saved(llama, tmp_path):
    llama.save(tmp_path / "decoder")
    return tmp_path / "decoder"


def test_versions_of_neurons_packages_are_kept(llama, tmp_path, monkeypatch):
    """Beside the versions that every decoder has; programs depend on them."""
    monkeypatch.setattr(saving, "neuron_versions", lambda: {"neuronx-cc": "2.28.7631.0"})
    llama.save(tmp_path / "decoder")
    versions = Manifest.read(tmp_path / "decoder").versions

    assert ("2.28.7631.0", torch.__version__) == (versions["neuronx-cc"], versions["torch"])


def test_tied_weights_are_stored_once(tiny_model, tmp_path):
    """OPT's output head is its embedding."""
    decoder = CompiledDecoder(tiny_model("opt"), max_length=16, widths=(1,))
    decoder.save(tmp_path / "decoder")

    assert "lm_head.weight" not in load_file(tmp_path / "decoder" / "model.safetensors")
    assert load_decoder(tmp_path / "decoder").shape == decoder.shape


def test_fused_weights_are_written_without_copies(tiny_model, tmp_path, monkeypatch):
    """Copies of tensors that share a storage are a third of a model more in memory."""
    model = copy.deepcopy(tiny_model("llama"))
    fuse_projections(model)
    decoder = CompiledDecoder(model, max_length=16, widths=(1,))
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    parameters = {tensor.data_ptr() for tensor in model.state_dict().values()}
    copied, clone = [], torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda self: (copied.append(self.data_ptr()), clone(self))[1])
    decoder.save(tmp_path / "decoder")
    stored = load_file(tmp_path / "decoder" / "model.safetensors")

    assert parameters.isdisjoint(copied)
    assert all(torch.equal(weights[name], tensor) for name, tensor in stored.items())


def test_a_folder_of_something_else_is_refused(llama, tmp_path):
    """Its files are kept."""
    (tmp_path / "thesis.txt").write_text("all of it")

    with pytest.raises(ValueError, match="'folder' must be new, empty or a saved decoder"):
        llama.save(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_mount_point_is_refused(llama, tmp_path, monkeypatch):
    """No other folder can take its place; one in it is saved into."""
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path)

    with pytest.raises(ValueError, match="must not be a mount point"):
        llama.save(tmp_path)
    llama.save(tmp_path / "decoder")
    assert ["decoder"] == [path.name for path in tmp_path.iterdir()]


def test_a_folder_that_cannot_be_written_is_refused(llama, tmp_path, monkeypatch):
    """Whichever user runs the test: root may write everywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)

    with pytest.raises(ValueError, match=f"in a folder that can be written: got .*new in {tmp_path}"):
        llama.save(tmp_path / "some" / "new")
    assert [] == list(tmp_path.iterdir())


def test_a_saved_decoder_with_a_foreign_file_is_refused(llama, saved):
    """Replacing the folder would lose the file."""
    (saved / "notes.txt").write_text("mine")

    with pytest.raises(ValueError, match=r"also holds notes\.txt"):
        llama.save(saved)

    assert (saved / "notes.txt").exists()


def test_a_saved_decoder_is_replaced(saved, tiny_model):
    """As a whole, with no temporary folder left."""
    CompiledDecoder(tiny_model("gpt2"), max_length=16, widths=(1,)).save(saved)

    assert load_decoder(saved).shape.max_length == 16
    assert [saved] == list(saved.parent.iterdir())


def test_a_save_that_fails_loses_nothing(llama, saved, monkeypatch):
    """The old folder is unchanged, and no temporary folder is left."""
    before = contents(saved)
    monkeypatch.setattr("decodekit.neuron_backend.artifacts.manifest.Manifest.write", lambda *_: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        llama.save(saved)

    assert before == contents(saved)
    assert [saved] == list(saved.parent.iterdir())


def test_weights_that_cannot_be_written_are_an_error_of_the_system(llama, saved, monkeypatch):
    """Safetensors has an error of its own for a full disk."""
    before = contents(saved)

    def full(*_):
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(saving, "save_file", full)
    with pytest.raises(OSError, match="the weights cannot be written: No space left on device"):
        llama.save(saved)

    assert before == contents(saved)


def test_says_what_it_is_doing(llama, tmp_path):
    """Gigabytes take more than seconds."""
    stages = []
    model = llama.step.model
    decoder = compile_decoder(model, target="eager", max_length=32, widths=(1,), progress=stages.append)
    stages.clear()
    decoder.save(tmp_path / "saved")

    assert [f"saving to {tmp_path / 'saved'}"] * 2 == [stage.name for stage in stages]


def test_the_tokenizer_is_saved_too(llama, tmp_path):
    """By its own save_pretrained, beside the model."""

    class Tokenizer:
        """Writes one file."""

        def save_pretrained(self, folder):
            (folder / "tokenizer.json").write_text("{}")

    llama.save(tmp_path / "decoder", tokenizer=Tokenizer())

    assert (tmp_path / "decoder" / "tokenizer.json").exists()
    assert load_decoder(tmp_path / "decoder").shape == llama.shape


def test_buffers_that_are_not_weights_come_back_exactly(tiny_model, tmp_path):
    """A model converted as a whole has rotary frequencies of low precision, which are kept."""
    model = copy.deepcopy(tiny_model("llama")).to(torch.bfloat16)
    decoder = CompiledDecoder(model, max_length=64, widths=(4,))
    decoder.save(tmp_path / "decoder")
    loaded = load_decoder(tmp_path / "decoder")

    for start in range(0, 64, 4):
        ids, cache_pos = torch.arange(start % 56, start % 56 + 4)[None], torch.tensor([start])
        assert torch.equal(decoder.forward(ids, cache_pos), loaded.forward(ids, cache_pos))
