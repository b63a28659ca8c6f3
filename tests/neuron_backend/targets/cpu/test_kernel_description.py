"""What a CPU program records of its kernels."""

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from decodekit.__main__ import main
from decodekit.neuron_backend import CompiledDecoder, load_decoder
from decodekit.neuron_backend.artifacts.packages import Package
from decodekit.neuron_backend.progress import Stage
from decodekit.neuron_backend.step import tensors_of
from decodekit.neuron_backend.targets.cpu import kernel_description, kernel_operations
from decodekit.neuron_backend.targets.cpu.kernel_description import (
    BIT_EXACT,
    METADATA,
    describe_kernels,
    instruction_words,
    kernel_metadata,
    saved_kernels,
)
from decodekit.neuron_backend.targets.cpu.program_loading import load_program

from ....toolchain_mark import needs_toolchain

assert kernel_operations is not None

AVX512 = ["avx512_bf16", "avx512_vnni", "avx512bw", "avx512dq", "avx512f", "avx512vl"]
ALL = ["amx_tile", "avx2", *AVX512, "fma"]


def graph_of(*operations: object) -> GraphModule:
    """A graph that calls them."""
    graph = Graph()
    for operation in operations:
        graph.call_function(operation, ())  # type: ignore[arg-type]
    return GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize(
    ("operations", "dtype", "options", "expected"),
    [
        (["float_gemm", "attention"], torch.float32, {}, "own kernels (AVX-512)"),
        (["float_gemm", "attention"], torch.bfloat16, {}, "own kernels (AVX-512, BF16)"),
        (["int8_gemm"], torch.bfloat16, {}, "own kernels (AVX-512, VNNI, AMX)"),
        (["int4_gemm", "float_gemm"], torch.bfloat16, {}, "own kernels (AVX-512, VNNI, BF16, AMX)"),
        (["float_gemm"], torch.bfloat16, {"tiled": True}, "own kernels (AVX-512, BF16, AMX)"),
        (["int8_gemm"], torch.bfloat16, {"limit": "avx512"}, "own kernels (AVX-512, VNNI)"),
        (["int8_gemm"], torch.bfloat16, {"limit": "avx2"}, "own kernels (AVX2)"),
        (["float_gemm"], torch.bfloat16, {"limit": "portable"}, "own kernels (portable)"),
        ([], torch.bfloat16, {}, "torch's kernels"),
    ],
)
def test_names_what_the_graph_uses(
    operations: list[str],
    dtype: torch.dtype,
    options: dict[str, Any],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the instruction sets that this CPU has."""
    monkeypatch.setattr(kernel_description, "instruction_sets", lambda: ALL)
    found = [getattr(torch.ops.decodekit, name).default for name in operations]
    graph = graph_of(torch.ops.aten.mm.default, *found)

    assert expected == describe_kernels(kernel_metadata(graph.graph.nodes, dtype, **options))


@pytest.mark.parametrize("missing", ["avx512f", "avx512vl"])
def test_vectors_need_all_of_their_sets(missing: str) -> None:
    """As the #if in csrc."""
    assert ["AVX2"] == instruction_words([name for name in ALL if name != missing])
    assert ["portable"] == instruction_words([name for name in AVX512 if name != missing])


def test_programs_of_older_releases_run_unnamed() -> None:
    """They have no record."""
    assert "kernels not recorded" == describe_kernels({"decodekit_fingerprint": "0"})


def rewritten(package: Package, **changes: str) -> Package:
    """*package* with other metadata."""
    content = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(package.content)) as old,
        zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as new,
    ):
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith("_metadata.json"):
                data = json.dumps({**json.loads(data), **changes}).encode()
            new.writestr(entry, data)
    return Package(content.getvalue(), package.constants)


@needs_toolchain
class TestCompiled:
    """Programs that were compiled."""

    def test_says_what_was_recorded(self, compiled_llama: CompiledDecoder, tmp_path: Path) -> None:
        """The program itself and its file."""
        compiled_llama.save(tmp_path / "saved")
        saved = saved_kernels(tmp_path / "saved")

        programs = {f"width_{width}": program for width, program in compiled_llama.programs.items()}
        assert ["width_1", "width_5"] == list(saved)
        assert {name: program.kernels for name, program in programs.items()} == saved  # type: ignore[attr-defined]
        assert all("kernels" in kernels and "not" not in kernels for kernels in saved.values())

    @pytest.mark.parametrize("recorded", ["true", "false"])
    def test_is_bit_exact_only_if_recorded(self, recorded: str, compiled_llama: CompiledDecoder) -> None:
        """By the compilation."""
        package = rewritten(compiled_llama.packages["width_1.zip"], **{BIT_EXACT: recorded})
        program = load_program(
            package,
            tensors_of(compiled_llama.step),
            compiled_llama.cache,
            metadata_of(package)["decodekit_fingerprint"],
        )

        assert (recorded == "true") is program.bit_exact
        assert describe_kernels(metadata_of(package)) == program.kernels

    def test_inspect_names_the_kernels_of_a_saved_decoder(
        self, compiled_llama: CompiledDecoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Without running native code: it may be damaged."""
        compiled_llama.save(tmp_path / "saved")
        for path in (tmp_path / "saved/programs").iterdir():
            without_code(path)

        assert 0 == main(["inspect", str(tmp_path / "saved"), "--json"])
        report = json.loads(capsys.readouterr().out)
        assert "cpu" == report["saved"]["target"]
        assert {f"width_{width}": one.kernels for width, one in compiled_llama.programs.items()} == report[  # type: ignore[attr-defined]
            "saved"
        ]["kernels"]

        assert 0 == main(["inspect", str(tmp_path / "saved")])
        assert f"saved   programs for cpu, {compiled_llama.kernels}\n" in capsys.readouterr().out

    def test_inspect_refuses_a_file_that_is_no_program(
        self, compiled_llama: CompiledDecoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """By its path."""
        compiled_llama.save(tmp_path / "saved")
        (tmp_path / "saved/programs/width_5.zip").write_bytes(b"nothing")

        assert 1 == main(["inspect", str(tmp_path / "saved")])
        assert "must be a program with metadata: got " in capsys.readouterr().err

    def test_stages_of_compiling(
        self, compiled_llama: CompiledDecoder, compiled_llama_stages: list[Stage]
    ) -> None:
        """A stage a width, with the kernels beside them."""
        names = [one.name for one in compiled_llama_stages if one.seconds is not None]

        assert [
            "loading LlamaForCausalLM",
            "comparing the eager step with the stock model",
            "compiling width 1 of 1, 5",
            "compiling width 5 of 1, 5",
            "compiling C++",
            "running programs over 64 positions",
            "loading the compiled programs",
            "comparing the program compiled for the CPU with the stock model",
        ] == [name for name in names if name != "compiling and measuring kernels"][:8]
        assert "compiling and measuring kernels" in names
        width_5 = [one for one in compiled_llama_stages if one.name == "compiling width 5 of 1, 5"]
        assert [(2, 2), (2, 2)] == [(one.number, one.of) for one in width_5]

    def test_stages_of_loading(self, compiled_llama: CompiledDecoder, tmp_path: Path) -> None:
        """The model is built when it is first needed; a repr does not need it."""
        compiled_llama.save(tmp_path / "saved")
        told: list[Stage] = []
        loaded = load_decoder(tmp_path / "saved", progress=told.append)

        assert repr(compiled_llama) == repr(loaded)
        folder = tmp_path / "saved"
        assert [
            f"looking for {folder}",
            f"looking for {folder}",
            f"loading {folder}",
            "running programs over 64 positions",
            "running programs over 64 positions",
            f"loading {folder}",
        ] == [one.name for one in told]

        assert loaded.weights.layers == {}
        assert "building the model" == told[-1].name


def metadata_of(package: Package) -> dict[str, str]:
    """The metadata in the file of a package."""
    with zipfile.ZipFile(io.BytesIO(package.content)) as archive:
        name = next(name for name in archive.namelist() if name.endswith("_metadata.json"))
        return dict(json.loads(archive.read(name)))


def without_code(path: Path) -> None:
    """Empty the shared object in the program at *path*."""
    whole = path.with_suffix(".whole")
    shutil.move(path, whole)
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, b"" if entry.filename.endswith(".so") else old.read(entry))
    whole.unlink()
    assert METADATA in metadata_of(Package(path.read_bytes()))
