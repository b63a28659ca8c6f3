import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from decodekit.neuron_backend import UnsupportedArchitecture, compile_decoder, load_decoder
from decodekit.neuron_backend.models.without_bars import without_bars
from decodekit.neuron_backend.progress import Stage

pytest.importorskip("gguf")

# Some settings are not in the files: those here are what transformers takes in their place.
COMMON: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
GROUPED = {**COMMON, "intermediate_size": 48, "num_key_value_heads": 2}

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, head_dim=128),
    "phi3": lambda: transformers.Phi3Config(**{**GROUPED, "vocab_size": 32064, "pad_token_id": 0}),
    "gpt2": lambda: transformers.GPT2Config(**COMMON),
    "gemma2": lambda: transformers.Gemma2Config(**GROUPED, head_dim=256),
    "gemma3": lambda: transformers.Gemma3TextConfig(**GROUPED, head_dim=256),
    "bloom": lambda: transformers.BloomConfig(**COMMON),
    "falcon": lambda: transformers.FalconConfig(**COMMON, multi_query=True, bias=False),
    "stablelm": lambda: transformers.StableLmConfig(**GROUPED),
    "starcoder2": lambda: transformers.Starcoder2Config(**GROUPED),
    "nemotron": lambda: transformers.NemotronConfig(**GROUPED),
}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    architecture: str,
    without: str = "",
    settings: Mapping[str, Any] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    tokens: Sequence[str] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """
    Write *model* under the tensor names and settings of *architecture*; matrices in *dtype*.

    Tensors are written in the order of transformers' weights; where llama.cpp stores them in another
    (rotary halves, norms less one), what is read back is another model, which is as good for tests.
    """
    import gguf
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
    )

    writer = gguf.GGUFWriter(path, architecture)
    # Of some architectures transformers reads the vocabulary's size nowhere else.
    writer.add_token_list(tokens or [f"t{token}" for token in range(model.config.vocab_size)])
    key = architecture.replace("moe", "_moe").replace("-", "_")
    for name, field in GGUF_CONFIG_MAPPING[key].items():
        if field not in (None, -1):
            _add(writer, f"{architecture}.{name}", _setting(model.config, field))
    for name, value in (settings or {}).items():
        _add(writer, name if name.startswith(("tokenizer.", "split.")) else f"{architecture}.{name}", value)
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)
    names = get_gguf_hf_weights_map(model, processor(config=model.config.to_dict()), architecture)
    state: dict[str, Tensor] = model.state_dict()
    for name, of_model in names.items():
        if of_model == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if name == without:
            continue
        tensor = state[of_model].detach().float()
        if architecture == "gpt2" and ".c_" in of_model and tensor.dim() == 2:
            tensor = tensor.T
        if architecture.startswith("gemma") and "norm" in name:
            tensor = tensor + 1
        if tensor.dim() > 1:
            tensor = tensor.to(dtype)
        kind = gguf.GGMLQuantizationType.BF16 if tensor.dtype == torch.bfloat16 else None
        content = tensor.contiguous()
        writer.add_tensor(
            name, (content if kind is None else content.view(torch.uint8)).numpy(), raw_dtype=kind
        )
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _setting(config: Any, field: str) -> Any:
    if field == "rope_theta":
        rope = config.rope_parameters
        return float(rope.get("full_attention", rope)["rope_theta"])
    return getattr(config, field, None)


def _add(writer: Any, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, list | tuple) and value:
        writer.add_array(name, list(value))


def made(architecture: str, **changes: Any) -> PreTrainedModel:
    """A model of that architecture with random weights; *changes* are to its config."""
    config = CONFIGS[architecture]()
    if changes:
        config = type(config)(**{**config.to_dict(), "layer_types": None, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()
    return model


@pytest.mark.parametrize(("dtype", "width"), [(None, 4), ("float64", 8)])
def test_the_size_of_the_weights_is_said(dtype: str | None, width: int, tmp_path: Path) -> None:
    """A quantised file takes several times as much memory as space."""
    model, stages = made("llama"), list[Stage]()
    path = write_gguf(tmp_path / "tiny.gguf", model, "llama")
    compile_decoder(path, dtype=dtype, target="eager", max_length=32, widths=(1,), progress=stages.append)

    size = f"{model.num_parameters() * width / 1e9:.2g} GB in {dtype or 'float32'}"
    assert f"loading {path}, {size}" in {stage.name for stage in stages}


@pytest.mark.parametrize("architecture", CONFIGS)
def test_text_is_that_of_transformers(
    architecture: str, tmp_path: Path, stock: Callable[..., Any], greedy: Callable[..., Any]
) -> None:
    """As transformers reads the same file; tensors are not all zero, or drawn anew."""
    path = write_gguf(tmp_path / "tiny.gguf", made(architecture), architecture)
    theirs = AutoModelForCausalLM.from_pretrained(str(tmp_path), gguf_file=path.name).eval()
    decoder = compile_decoder(
        path, target="eager", batch_size=2, widths=(1, 8), max_length=64, progress=False
    )
    prompts = [[5, 9, 2], [7, 3, 11, 4, 8]]
    # Of some files transformers takes its own default, 2.
    theirs.generation_config.eos_token_id = None
    expected = stock(theirs, prompts, 12)

    assert expected == greedy(decoder, prompts, 12)
    assert len({token for row in expected for token in row}) >= 2


def test_weights_are_of_the_file_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of one with its name in the current folder."""
    (tmp_path / "other").mkdir()
    model = made("llama")
    path = write_gguf(tmp_path / "other" / "tiny.gguf", model, "llama")
    torch.nn.init.zeros_(model.model.norm.weight)
    write_gguf(tmp_path / "tiny.gguf", model, "llama")
    monkeypatch.chdir(tmp_path)
    options = {"target": "eager", "widths": (1,), "max_length": 16, "progress": False}
    norms = [
        compile_decoder(name, **options).step.model.model.norm.weight.sum()
        for name in (path, "other/tiny.gguf", "tiny.gguf")
    ]

    assert norms[0] == norms[1] > 0 == norms[2]


def test_a_saved_decoder_is_an_ordinary_one(tmp_path: Path, greedy: Callable[..., Any]) -> None:
    """Its config does not speak of the file, which may be gone."""
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama")
    decoder = compile_decoder(path, target="eager", widths=(1, 8), max_length=64, progress=False)
    decoder.save(tmp_path / "saved")
    path.unlink()

    assert greedy(decoder, [[5, 9, 2]], 8) == greedy(load_decoder(tmp_path / "saved"), [[5, 9, 2]], 8)


def test_weights_take_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    """As of a folder."""
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama")
    decoder = compile_decoder(
        path, target="eager", widths=(1,), max_length=16, dtype="bfloat16", progress=False
    )

    assert torch.bfloat16 == decoder.step.model.dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_weights_keep_the_dtype_of_the_file(dtype: torch.dtype, tmp_path: Path) -> None:
    """Where none is asked for; norms are in float32 in all files."""
    # As llama.cpp writes routers and positions.
    others = {"blk.0.of_float32": torch.zeros(4, 4)}
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama", dtype=dtype, tensors=others)
    decoder = compile_decoder(path, max_length=32, batch_size=1, widths=(1,), target="eager")

    assert {dtype} == {parameter.dtype for parameter in decoder.step.model.parameters()}


def test_a_part_of_a_model_is_refused(tmp_path: Path) -> None:
    """Before its weights are unpacked."""
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama", settings={"split.count": 3})

    with pytest.raises(ValueError, match=r"tiny\.gguf, one of 3 parts; `llama-gguf-split --merge"):
        compile_decoder(path, max_length=32, batch_size=1, widths=(1,), target="eager")


def test_a_file_that_was_not_fetched_to_the_end_is_refused(tmp_path: Path) -> None:
    """Its header describes more than there is."""
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama")
    content = path.read_bytes()
    path.write_bytes(content[:-1])

    with pytest.raises(
        ValueError,
        match=rf"must be whole: got .*tiny\.gguf of {len(content) - 1} bytes, whose header describes "
        rf"{len(content)}",
    ):
        compile_decoder(path, max_length=32, batch_size=1, widths=(1,), target="eager")


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    """By transformers, which says which."""
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "rwkv7")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedArchitecture, match=r"other.gguf is not supported: .*rwkv7"):
        compile_decoder(tmp_path / "other.gguf", target="eager")


def test_a_file_without_all_weights_is_refused(tmp_path: Path) -> None:
    """Transformers would draw them at random."""
    path = write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama", without="blk.1.ffn_up.weight")
    with pytest.raises(
        UnsupportedArchitecture, match=r"lacks 1 of its weights, such as model.layers.1.mlp.up"
    ):
        compile_decoder(path, target="eager", widths=(1,), max_length=16, progress=False)


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    """Missing, or of another content."""
    with pytest.raises(FileNotFoundError, match=r"'model' must be a file that exists: got '.*no.gguf'"):
        compile_decoder(tmp_path / "no.gguf")
    (tmp_path / "zip.gguf").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(ValueError, match="'model' must be a GGUF file, which begins with b'GGUF'"):
        compile_decoder(tmp_path / "zip.gguf")


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is loaded."""
    (tmp_path / "any.gguf").write_bytes(b"GGUF")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "gguf" else found(name, *rest)
    )
    with pytest.raises(ImportError, match=r"gguf cannot be imported.*pip install 'decodekit\[gguf\]'"):
        compile_decoder(tmp_path / "any.gguf")


def test_loading_shows_no_bar(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither for the file nor for a saved decoder; transformers' own settings stay as they were."""
    from transformers.utils import logging

    path, before = (
        write_gguf(tmp_path / "tiny.gguf", made("llama"), "llama"),
        logging.is_progress_bar_enabled(),
    )
    capfd.readouterr()
    options = {"target": "eager", "widths": (1, 8), "max_length": 64, "progress": False}
    compile_decoder(path, **options).save(tmp_path / "saved")
    load_decoder(tmp_path / "saved", progress=False)

    assert "%|" not in capfd.readouterr().err
    assert before == logging.is_progress_bar_enabled()


def test_two_threads_load_without_bars() -> None:
    """The one that ends first does not show those of the other, and the last leaves the setting as it was."""
    from transformers.utils import logging

    before, one, other = logging.is_progress_bar_enabled(), without_bars(), without_bars()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    between = logging.is_progress_bar_enabled()
    other.__exit__(None, None, None)

    assert (False, before) == (between, logging.is_progress_bar_enabled())
