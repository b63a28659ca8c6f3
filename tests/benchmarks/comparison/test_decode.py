"""The comparison with peers, on a tiny shape through the real processes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from decodekit.__main__ import main
from decodekit.benchmarks.comparison.measurement import (
    ComparisonResult,
    PeerResult,
    compare,
    decoder_name,
)
from decodekit.benchmarks.comparison.reference import LogitAgreement
from decodekit.benchmarks.comparison.settings import Comparison, Entry, entries
from decodekit.benchmarks.comparison.tables import report, thresholds
from decodekit.benchmarks.models.shapes import shape_named

HERE = Path(__file__).parent
STAND_INS = HERE.parent / "peers" / "stand_ins"

SMALL = Comparison(
    shape=shape_named("tiny").scaled(layers=1),
    entries=entries(["float32"], ["float32"], ["F32", "F16"]),
    prompts=(6, 9),
    tokens=4,
    rounds=2,
    threads=1,
    widths=(1, 6),
    target="eager",
)


@pytest.fixture(scope="module")
def with_stand_ins() -> Iterator[None]:
    """Stand-ins of llama-cpp-python and gguf, in numpy."""
    with pytest.MonkeyPatch.context() as patch:
        paths = [str(STAND_INS), os.environ.get("PYTHONPATH", "")]
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
        yield


@pytest.fixture(scope="module")
def compared(with_stand_ins: None, tmp_path_factory: pytest.TempPathFactory) -> ComparisonResult:
    """All peers are present."""
    return compare(attrs.evolve(SMALL, folder=tmp_path_factory.mktemp("comparison")))


@pytest.mark.slow
class TestCompare:
    def test_all_peers_compute_the_same(self, compared: ComparisonResult) -> None:
        """Ours, transformers and the stand-in's Llama read from the GGUF file agree."""
        names = ["decodekit float32", "transformers float32", "llama.cpp F32", "llama.cpp F16"]
        assert names == [each.entry.name for each in compared.peers]
        for each in compared.peers:
            assert each.agreement.divergence < (1e-5 if each.entry.bits == 16 else 1e-10)
            assert 1.0 == each.agreement.same_top_token
            assert 4 == each.same_tokens

    def test_every_round_counts_once(self, compared: ComparisonResult) -> None:
        """The warm-up is not counted."""
        for each in compared.peers:
            assert 2 == len(each.token_ms)
            assert {6: 2, 9: 2} == {length: len(times) for length, times in each.prompt_ms.items()}
            assert min(each.token_ms) > 0

    def test_bytes_are_counted_alike(self, compared: ComparisonResult) -> None:
        """Equal for equal formats; 16 bits are half of 32, norms and cache aside."""
        ours, theirs, cpp, half = (each.read_bytes for each in compared.peers)

        assert ours == theirs
        assert pytest.approx(ours, rel=0.02) == cpp
        assert pytest.approx(cpp / 2, rel=0.02) == half

    def test_the_report(self, compared: ComparisonResult, tmp_path: Path) -> None:
        """The report names the peers' versions, llama.cpp's build and the scaled-down model."""
        found = report(compared)
        found.write(tmp_path / "decode.json")
        notes = "\n".join(found.notes)

        assert "stand-in" == found.versions["llama.cpp"]
        assert "CPU : STAND_IN = 1" in notes
        assert "No figure of the full shape" in notes
        assert 4 == len(json.loads((tmp_path / "decode.json").read_text())["results"]["peers"])

    def test_the_model_is_kept(self, compared: ComparisonResult) -> None:
        """Files are kept in the given folder for the next comparison."""
        assert compared.comparison.folder is not None
        (folder,) = compared.comparison.folder.iterdir()

        assert {"model", "arrays", "model-F32.gguf", "model-F16.gguf"} <= {f.name for f in folder.iterdir()}


def test_peers_that_are_not_installed_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other peers still run."""
    (tmp_path / "gguf.py").write_text("raise ModuleNotFoundError('none', name='gguf')")
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    file = tmp_path / "decode.json"
    status = main(
        [
            "bench",
            "decode",
            "--shape",
            "tiny",
            "--formats",
            "float32",
            "--transformers",
            "--target",
            "eager",
            "--llama-cpp",
            "F32",
            "--prompts",
            "4",
            "--tokens",
            "2",
            "--widths",
            "1",
            "4",
            "--threads",
            "1",
            "--rounds",
            "1",
            "--json",
            str(file),
        ]
    )

    assert 0 == status
    assert "Absent: llama.cpp F32: gguf is not installed" in capsys.readouterr().out
    found = json.loads(file.read_text())["results"]["peers"]
    assert ["float32"] == [each["entry"]["format"] for each in found]


def test_another_function_is_refused(with_stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrongly permuted weights are detected before any measurement."""
    from decodekit.benchmarks.comparison import files

    broken = HERE / "rotated_otherwise.py"
    monkeypatch.setattr(files, "_WRITE_GGUF", broken)
    with pytest.raises(ValueError, match=r"'llama\.cpp F32' must compute what the stock model computes"):
        compare(attrs.evolve(SMALL, entries=entries([], [], ["F32"])))


@pytest.mark.parametrize(
    "wrong",
    [
        {"tokens": 1},
        {"rounds": 0},
        {"threads": 0},
        {"entries": ()},
        {"entries": (Entry("decodekit", "int2"),)},
        {"entries": (Entry("decodekit", "F32"),)},
        {"entries": (Entry("transformers", "bfloat16-int8"),)},
        {"entries": (Entry("llama.cpp", "float32"),)},
        {"peer_python": "no-such-python"},
    ],
)
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    """Invalid settings are refused before anything is written or started."""
    with pytest.raises(ValueError, match="must"):
        compare(attrs.evolve(SMALL, **wrong))


def test_a_decoder_is_kept_by_target() -> None:
    """One of another target is not taken for it."""
    entry = Entry("decodekit", "float32")
    names = [decoder_name(entry, attrs.evolve(SMALL, target=target)) for target in ("eager", "cpu")]

    assert ["eager-float32-w1_6-n1024", "cpu-float32-w1_6-n1024"] == names


def measured(name: str, token_ms: list[float], prompt_ms: list[float]) -> PeerResult:
    """A result that reads 10 MB per token."""
    entry = Entry(*name.split())
    times = {64: tuple(prompt_ms), 512: tuple(10 * ms for ms in prompt_ms)}
    return PeerResult(entry, tuple(token_ms), times, 10e6, LogitAgreement(0.0, 1.0), 4, {})


class TestThresholds:
    def found(self, *parts: PeerResult, busy: int = 0) -> dict[str, tuple[float, bool]]:
        """Goals by name; at 10 GB/s a token takes at least 1 ms."""
        comparison = attrs.evolve(SMALL, prompts=(64, 512), busy=busy)
        return {
            threshold.what: (threshold.value, threshold.met)
            for threshold in thresholds(ComparisonResult(comparison, parts, {}, 10e9, "measured"))
        }

    def test_ratios_are_of_rounds(self) -> None:
        """A round that is slow for both does not change the ratio: 2/4, 2/4 and 20/40."""
        found = self.found(
            measured("decodekit bfloat16-int8", [2.0, 2.0, 20.0], [5.0, 5.0, 50.0]),
            measured("llama.cpp Q8_0", [4.0, 4.0, 40.0], [4.0, 4.0, 40.0]),
        )
        names = "bfloat16-int8 against llama.cpp Q8_0"

        assert (0.5, True) == found[f"ms per token, {names}"]
        assert (1.25, False) == found[f"prompt of 64, {names}"]
        assert (1.25, False) == found[f"prompt of 512, {names}"]
        assert (50.0, False) == found["share of the memory's limit, bfloat16-int8"]

    def test_beside_busy_processes(self) -> None:
        """Only tokens a second are judged."""
        found = self.found(
            measured("decodekit bfloat16", [5.0, 50.0], [1.0, 1.0]),
            measured("llama.cpp BF16", [4.0, 40.0], [9.0, 9.0]),
            busy=2,
        )

        assert {
            "tokens a second beside 2 busy processes, bfloat16 against llama.cpp BF16": (0.8, True)
        } == found

    def test_a_format_is_judged_by_its_own_type(self) -> None:
        """Of llama.cpp; and the faster of ours by the fastest of transformers."""
        found = self.found(
            measured("decodekit bfloat16", [3.0], [1.0]),
            measured("decodekit float16", [1.25], [1.0]),
            measured("transformers float32", [9.0], [1.0]),
            measured("transformers float16", [5.0], [1.0]),
            measured("llama.cpp BF16", [2.5], [1.0]),
            measured("llama.cpp F16", [0.1], [1.0]),
        )

        assert (1.2, False) == found["ms per token, bfloat16 against llama.cpp BF16"]
        assert (12.5, False) == found["ms per token, float16 against llama.cpp F16"]
        assert (4.0, True) == found["times faster a token, float16 against transformers float16"]
        assert (80.0, True) == found["share of the memory's limit, float16"]

    def test_without_peers(self) -> None:
        """Without a peer there is no goal."""
        assert {} == self.found(measured("decodekit bfloat16", [3.0], [1.0]))
