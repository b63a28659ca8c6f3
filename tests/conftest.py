"""What every test runs under, and what many need: tiny random models, decoders over them, plain loops."""

import os

# Nothing here may look for a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import copy
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import torch
import transformers
from hypothesis import settings
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.neuron_backend import CompiledDecoder, compile_decoder
from decodekit.neuron_backend.progress import Stage

from .compiled_once import COMPILER, install

# The machine may be busy, and no test is about time. scripts/test --slow takes the full number of examples,
# .ci/run half of it.
settings.register_profile("full", deadline=None, max_examples=60)
settings.register_profile("half", deadline=None, max_examples=30)
settings.register_profile("quick", deadline=None, max_examples=20)
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long campaigns and slow tests run, and where they begin."""
    parser.addoption("--fuzz-minutes", type=float, default=1.0, help="minutes of a campaign (1)")
    parser.addoption("--fuzz-seed", type=int, default=0, help="first seed of a campaign (0)")
    parser.addoption(
        "--slow-until",
        type=float,
        default=math.inf,
        help="time after which slow tests are skipped, in seconds since 1970 (never)",
    )
    parser.addoption(
        "--first-file", type=int, default=0, help="number of the file to begin with, modulo the files (0)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Compile each program once, whichever worker and test asks for it."""
    # Workers and the programs that tests start find it set.
    if "CXX" not in os.environ and shutil.which(COMPILER):
        folder = tempfile.mkdtemp(prefix="decodekit_compiled_")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ["CXX"] = str(install(Path(folder)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark all but every n-th case of a test marked ``mostly_slow`` as slow; begin with another file."""
    files = list(dict.fromkeys(item.path for item in items))
    numbers = {path: number for number, path in enumerate(files)}
    first = config.getoption("--first-file") % max(len(files), 1)
    items.sort(key=lambda item: (numbers[item.path] - first) % len(files))
    seen: Counter[str] = Counter()
    for item in items:
        if (mark := item.get_closest_marker("mostly_slow")) is not None:
            function = item.nodeid.partition("[")[0]
            if seen[function] % mark.kwargs["every"]:
                item.add_marker(pytest.mark.slow)
            seen[function] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip slow tests when their time is over, before a fixture is made."""
    if item.get_closest_marker("slow") is not None and time.time() > item.config.getoption("--slow-until"):
        pytest.skip("slow, and later than --slow-until")


VOCAB = 61
WINDOW = 16

COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    # Wide enough for greedy text to vary; the usual 0.02 repeats one token.
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    # Tied, they make every token its own successor; OPT is tied all the same, to have one such.
    "tie_word_embeddings": False,
}
GROUPED = {**COMMON, "intermediate_size": 48, "num_key_value_heads": 2}
LATENT = {
    **COMMON,
    "intermediate_size": 48,
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
}

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "mistral": lambda: transformers.MistralConfig(**GROUPED, sliding_window=WINDOW),
    "qwen2": lambda: transformers.Qwen2Config(**GROUPED),
    "qwen3": lambda: transformers.Qwen3Config(**GROUPED, head_dim=12),
    "gpt2": lambda: transformers.GPT2Config(**COMMON),
    "gpt_neox": lambda: transformers.GPTNeoXConfig(**COMMON, intermediate_size=48),
    "opt": lambda: transformers.OPTConfig(
        **{**COMMON, "tie_word_embeddings": True}, init_std=0.3, ffn_dim=48, word_embed_proj_dim=32
    ),
    "phi": lambda: transformers.PhiConfig(**GROUPED),
    "mixtral": lambda: transformers.MixtralConfig(**GROUPED, num_local_experts=4),
    "gemma2": lambda: transformers.Gemma2Config(
        **GROUPED, head_dim=12, query_pre_attn_scalar=12, sliding_window=WINDOW
    ),
    "mamba": lambda: transformers.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2),
    "lfm2": lambda: transformers.Lfm2Config(**GROUPED, layer_types=["conv", "full_attention"]),
    "falcon": lambda: transformers.FalconConfig(**COMMON, num_kv_heads=2, new_decoder_architecture=True),
    # Slopes that bfloat16, in which Falcon has them, rounds.
    "falcon_alibi": lambda: transformers.FalconConfig(
        **{**COMMON, "num_attention_heads": 16}, alibi=True, new_decoder_architecture=False
    ),
    # Six heads are no power of two: they have slopes of two kinds.
    "bloom": lambda: transformers.BloomConfig(**{**COMMON, "hidden_size": 48, "num_attention_heads": 6}),
    "mpt": lambda: transformers.MptConfig(
        **{**COMMON, "hidden_size": 48, "num_attention_heads": 6}, max_seq_len=128
    ),
    "gpt_neo": lambda: transformers.GPTNeoConfig(
        **COMMON, intermediate_size=48, attention_types=[[["global", "local"], 1]], window_size=WINDOW
    ),
    # The last two of its layers look at what the first two keep.
    "gemma3n": lambda: transformers.Gemma3nTextConfig(
        **{**GROUPED, "num_hidden_layers": 4},
        head_dim=8,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        altup_num_inputs=2,
        num_kv_shared_layers=2,
        activation_sparsity_pattern=[0.0] * 4,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"] * 2,
    ),
    # Its second layer scales its queries, by more at every fourth position.
    "llama4": lambda: transformers.Llama4TextConfig(
        **GROUPED,
        no_rope_layers=[1, 0],
        floor_scale=4,
        attn_scale=1.0,
        intermediate_size_mlp=48,
        head_dim=8,
        num_local_experts=4,
        attention_chunk_size=WINDOW,
        layer_types=["chunked_attention", "full_attention"],
    ),
    # Sinks, and experts with biases whose weights are stored by columns.
    "gpt_oss": lambda: transformers.GptOssConfig(
        **GROUPED,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
    "deepseek_v2": lambda: transformers.DeepseekV2Config(**LATENT, q_lora_rank=None),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(**LATENT, q_lora_rank=12),
}

Greedy = Callable[[CompiledDecoder, list[list[int]], int], list[list[int]]]


SHARED: Final = ("llama", "qwen2", "gpt2")
"""The models that most tests take."""


@cache
def tiny(name: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model of that architecture with random weights, the same at every call."""
    if dtype != torch.float32:
        model = copy.deepcopy(tiny(name)).to(dtype)
        # Of which the default experts of mixtures know nothing; before transformers 5 there was one kind.
        if dtype == torch.float64 and hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("batched_mm")
        return model
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()


def feed(decoder: CompiledDecoder, rows: list[list[int]], width: int) -> Tensor:
    """Prefill right-aligned rows in chunks; logits of the last column, ``[batch, vocab]``."""
    chunks = -(-max(map(len, rows)) // width)
    columns = chunks * width
    ids = torch.tensor([[-1] * (columns - len(row)) + row for row in rows])
    starts = torch.tensor([len(row) - columns for row in rows])
    for chunk in range(chunks):
        logits = decoder.forward(ids[:, chunk * width : (chunk + 1) * width], starts + chunk * width)
    return logits[:, -1]


def greedy_loop(decoder: CompiledDecoder, prompts: list[list[int]], count: int) -> list[list[int]]:
    """*count* new tokens for each row: prefill at the widest width, then steps of width 1."""
    cache_pos = torch.tensor([len(prompt) for prompt in prompts])
    chosen = [feed(decoder, prompts, decoder.shape.widths[-1]).argmax(dim=-1)]
    while len(chosen) < count:
        logits = decoder.forward(chosen[-1][:, None], cache_pos)
        chosen.append(logits[:, -1].argmax(dim=-1))
        cache_pos = cache_pos + 1
    return torch.stack(chosen, dim=1).tolist()


def stock_greedy(model: PreTrainedModel, prompts: list[list[int]], count: int) -> list[list[int]]:
    """What ``generate`` says of left-padded rows."""
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = model.generate(
        input_ids=padded, attention_mask=mask, do_sample=False, max_new_tokens=count, pad_token_id=0
    )
    return output[:, longest:].tolist()


@pytest.fixture
def three_threads() -> Iterator[None]:
    """Torch uses three threads while the test runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def program_records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the record of compiled programs out of the home folder."""
    folder = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECODEKIT_CACHE", str(folder))
        yield folder


def state(model: PreTrainedModel) -> tuple[dict, int]:
    """What a test could change of a shared model: its generation config and, by count, its parameters."""
    return model.generation_config.to_dict(), sum(parameter._version for parameter in model.parameters())


@pytest.fixture(scope="module", autouse=True)
def unmodified_models() -> Iterator[None]:
    """Fail the file whose tests modified a model that others share."""
    before = {name: state(tiny(name)) for name in SHARED}
    yield
    for name, kept in before.items():
        assert kept == state(tiny(name)), f"a test of this file modified the shared model {name!r}"


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., PreTrainedModel]:
    """Tiny models by name and dtype; not to be modified."""
    return tiny


@pytest.fixture(scope="session")
def greedy() -> Greedy:
    """The greedy loop over a decoder."""
    return greedy_loop


@pytest.fixture(scope="session")
def stock() -> Callable[..., list[list[int]]]:
    """The same through ``transformers``."""
    return stock_greedy


@pytest.fixture(scope="session")
def prefill() -> Callable[..., Tensor]:
    """Feeds right-aligned rows in chunks of one width."""
    return feed


@pytest.fixture
def llama() -> CompiledDecoder:
    """An eager decoder of two rows with a cache of its own."""
    return CompiledDecoder(tiny("llama"), batch_size=2, max_length=64, widths=(1, 5, 16))


@pytest.fixture(scope="session")
def compiled_llama_stages() -> list[Stage]:
    """The stages of ``compiled_llama``, from its compilation on."""
    return []


@pytest.fixture(scope="session")
def compiled_llama(compiled_llama_stages: list[Stage]) -> CompiledDecoder:
    """Compiled once for the session; what its cache holds is the last test's."""
    return compile_decoder(
        tiny("llama"),
        batch_size=2,
        max_length=64,
        widths=(1, 5),
        target="cpu",
        progress=compiled_llama_stages.append,
    )


@pytest.fixture(scope="session")
def compiled_gemma2() -> CompiledDecoder:
    """As ``compiled_llama``, with layers of two kinds and a wide width that scores one column."""
    return compile_decoder(
        tiny("gemma2"), batch_size=2, max_length=72, widths=(1, 8), scored_width=1, target="cpu"
    )
