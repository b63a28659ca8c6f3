"""What users install."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

import decodekit

ROOMS = {
    "benchmarks": "comparison forward generation host measuring models peers prompts serving speculation",
    "decoding": (
        "cache engine interop optional_protocols results sampling sampling/compiled sampling/compiled/csrc "
        "serving stopping strategies strategies/beams testing text"
    ),
    "neuron_backend": (
        "adapters artifacts kv_cache lint lowering models on_device_sampling parity quantization "
        "serialization sizing targets targets/cpu targets/cpu/csrc targets/cpu/layered targets/cuda "
        "targets/layered targets/neuron tensor_parallel"
    ),
    "pretrained": "",
    "processors": "constraints fast grammar interop numerics penalties scaling truncation watermark",
    "speculation": "draft_length drafters exactness verification",
    "streaming": "",
}
"""The packages, and the rooms in each."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The wheel under test: the one that ``scripts/test`` installed, or one made from the checkout."""
    if built := os.environ.get("DECODEKIT_WHEEL"):
        return pathlib.Path(built)
    folder = tmp_path_factory.mktemp("dist")
    root = pathlib.Path(__file__).parents[1]
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, root],
        check=True,
        capture_output=True,
        timeout=300,
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_the_rooms_and_nothing_else(wheel: pathlib.Path) -> None:
    """The rooms' modules, C++ and JSON, three files at the root, the type checkers' marker, the metadata."""
    names = zipfile.ZipFile(wheel).namelist()
    ours = {name for name in names if name.startswith("decodekit/")}
    root = {name for name in ours if name.count("/") == 1}
    source = pathlib.Path(decodekit.__file__).parent
    modules = {
        f"decodekit/{room}/{path.name}"
        for package, rooms in ROOMS.items()
        for room in (package, *(f"{package}/{room}" for room in rooms.split()))
        for kind in ("*.py", "*.cpp", "*.h", "*.json")
        for path in (source / room).glob(kind)
    }

    assert {f"decodekit/{n}" for n in ("__init__.py", "__main__.py", "py.typed", "testing.py")} == root
    assert modules == ours - root
    info = f"decodekit-{decodekit.__version__}.dist-info"
    assert {
        f"{info}/{n}"
        for n in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE")
    } == (set(names) - ours)


def test_the_metadata_is_what_pyproject_says() -> None:
    """Licence, Python, dependencies, and an extra that the empty stub cannot satisfy."""
    metadata = importlib.metadata.metadata("decodekit")
    requires = importlib.metadata.requires("decodekit") or []

    assert "Apache-2.0" == metadata["License-Expression"]
    assert ">=3.11" == metadata["Requires-Python"]
    assert ["attrs>=25.4", "numpy>=1.26", "torch>=2.9", "transformers<6,>=4.57"] == sorted(
        r for r in requires if "extra" not in r
    )
    assert 'torch-neuronx>=2.9; extra == "neuron"' in requires
    assert 'llguidance>=1.7; extra == "grammar"' in requires
    assert 'matplotlib>=3.8; extra == "plot"' in requires
    assert 'ray[data,serve]>=2.50; extra == "ray"' in requires
    assert {"neuron", "gguf", "grammar", "plot", "ray", "serve", "test", "dev"} == set(
        metadata.get_all("Provides-Extra")
    )


def test_protocols_and_history_lie_at_the_bottom() -> None:
    """protocols.py imports history, scores and validation alone, and those nothing of ours."""
    source = pathlib.Path(decodekit.__file__).parent / "decoding"
    imports = {
        name: [line for line in (source / name).read_text().splitlines() if line.startswith("from .")]
        for name in ("protocols.py", "history.py", "scores.py", "validation.py")
    }

    assert {
        "protocols.py": [
            "from .history import History",
            "from .scores import Scores",
            "from .validation import as_tuple, is_whole",
        ],
        "history.py": [],
        "scores.py": [],
        "validation.py": [],
    } == imports


USED = """
import decodekit, decodekit.testing
from decodekit.decoding import EndOfSequence, Generator, Greedy, MaxNewTokens, MaxTime, Sample, StopStrings
from decodekit.processors import MinP, NoRepeatNgram, RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import DraftModel, PromptLookup, SpeculativeGenerator
from decodekit.streaming import TextIterator, TextStreamer
from decodekit.neuron_backend import CompiledDecoder, compile_decoder, load_decoder
"""

HEAVY = (
    *("transformers", "tokenizers", "huggingface_hub", "httpx", "llguidance", "matplotlib", "ray"),
    *("starlette", "sympy", "torch._dynamo", "torch._inductor", "torch.fx.experimental.proxy_tensor"),
    *("torch_neuronx", "neuronx_distributed"),
)


def imported_by(program: str) -> set[str]:
    """The modules that *program* brings where torch is."""
    code = f"import sys, torch; before = set(sys.modules)\n{program}\nprint(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


def test_importing_is_light() -> None:
    """What a program names first loads nothing that only some uses need, the model library included."""
    assert set() == imported_by(USED) & set(HEAVY)


@pytest.mark.parametrize(
    ("program", "later"),
    [
        pytest.param(
            "from decodekit.neuron_backend import compile_decoder, load_decoder",
            {
                *(f"neuron_backend.{name}" for name in ("static_decoder", "compiled_decoder", "step")),
                *(f"neuron_backend.{name}" for name in ("parity.logits_probe", "kv_cache.buffers")),
                *(f"neuron_backend.artifacts.{name}" for name in ("packages", "manifest")),
                *(f"neuron_backend.serialization.{name}" for name in ("saving", "hub")),
                *(f"neuron_backend.targets.{name}" for name in ("cpu.aoti", "neuron.detect", "eager_target")),
                *(f"neuron_backend.targets.{name}" for name in ("cpu.cpu_target", "cuda.cuda_target")),
                *(f"neuron_backend.targets.{name}" for name in ("cuda.cuda_runtime", "neuron.native_target")),
                *(f"neuron_backend.{room}" for room in ("lowering", "lint", "tensor_parallel")),
                *(f"neuron_backend.{room}" for room in ("quantization", "sizing")),
                *("neuron_backend.on_device_sampling.fusion", "decoding.generator"),
            },
            id="a-decoder-is-made-when-it-is-asked-for",
        ),
        pytest.param(
            "from decodekit.neuron_backend.targets.registry import target_named; target_named('cpu')",
            {
                "neuron_backend.targets.cuda.cuda_target",
                *(f"neuron_backend.targets.neuron.{name}_target" for name in ("native", "traced")),
            },
            id="nobody-needs-two-targets",
        ),
        pytest.param(
            "from decodekit.decoding import Generator, Greedy, MaxNewTokens",
            {
                *(f"decoding.text.{name}" for name in ("detokenizer", "per_tokenizer")),
                *("decoding.results.row_text", "decoding.sampling.sample", "decoding.stopping.stop_strings"),
                *(f"decoding.engine.{name}" for name in ("logprob_recorder", "prompt_logprobs")),
                "decoding.sampling_placement",
                *("processors.chain", "speculation", "streaming", "neuron_backend"),
            },
            id="ids-are-generated-without-texts-or-log-probabilities",
        ),
    ],
)
def test_what_is_used_later_is_imported_later(program: str, later: set[str]) -> None:
    """And every module of *later* is one that there is."""
    names = {f"decodekit.{name}" for name in later}

    assert set() == imported_by(program) & names
    assert names <= imported_by("\n".join(f"import {name}" for name in sorted(names)))
