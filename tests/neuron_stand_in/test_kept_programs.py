"""Compiled programs are kept as they come, and weights can be laid out for one of them."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.neuron_backend import CompiledDecoder, StaticDecoder, compile_decoder, load_decoder
from decodekit.neuron_backend.models.early_exit import first_layers
from decodekit.neuron_backend.targets.neuron.model_builder import ModelBuilderWay, on_cores
from decodekit.neuron_backend.targets.neuron.program_compiler import CompiledFiles
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget
from decodekit.processors import Temperature, TopK

pytestmark = pytest.mark.stand_in

SHAPE: dict[str, Any] = {"batch_size": 2, "max_length": 48, "widths": (1, 5), "spans": (12, 48)}
NAMES = {"width_1_span_12", "width_1_span_48", "width_5_span_12", "width_5_span_48"}
PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60, 1, 30]]


def text(decoder: CompiledDecoder, **parts: Any) -> list[list[int]]:
    """Text generated with a decoder."""
    return Generator(decoder, stop=MaxNewTokens(30), **parts)(PROMPTS).ids


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user who has compiled nothing."""
    monkeypatch.setenv("DECODEKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Names of the programs that the compiler was run for, from now on."""
    from neuronx_distributed.trace import functions

    functions.compiled.clear()
    yield functions.compiled
    functions.failing.clear()


@pytest.fixture(scope="module")
def eager(tiny_model: Callable[..., Any]) -> StaticDecoder:
    """The decoder that is compiled."""
    return StaticDecoder(tiny_model("llama"), **SHAPE)


@pytest.fixture
def make(eager: StaticDecoder) -> Callable[..., dict[str, CompiledFiles]]:
    """Traces and compiles its programs, without loading them."""

    def made(arguments: str = "-O1", **options: Any) -> dict[str, CompiledFiles]:
        way = ModelBuilderWay(arguments, None, False, **options)
        with on_cores(1):
            return way.programs(eager, way.step(eager), [0] * 4)[1]

    return made


@pytest.fixture
def build(tiny_model: Callable[..., Any]) -> Callable[..., CompiledDecoder]:
    """Compiles a smaller decoder through NxD, with these options of the target."""

    def built(parts: dict[str, Any] | None = None, **options: Any) -> CompiledDecoder:
        target = TracedTarget(way="nxd", **options)
        shape = {**SHAPE, "widths": (1, 5), "spans": (48,)}
        return compile_decoder(first_layers(tiny_model("llama"), 1), target=target, **shape, **(parts or {}))

    return built


def test_those_before_a_failure_are_not_compiled_again(make, compiled) -> None:
    """The message names the one that failed, and the next attempt compiles that one alone."""
    from neuronx_distributed.trace import functions

    functions.failing.add("width_5_span_12")
    with pytest.raises(
        RuntimeError, match="all 4 programs: got 1 that failed, the others are kept: width_5_span_12"
    ):
        make()
    assert NAMES - {"width_5_span_12"} == set(compiled)

    functions.failing.clear()
    compiled.clear()
    found = make()

    assert ["width_5_span_12"] == compiled
    assert {name: name != "width_5_span_12" for name in NAMES} == {
        name: one.was_kept for name, one in found.items()
    }
    again = make(keep_programs=False)
    assert {name: one.files for name, one in again.items()} == {
        name: one.files for name, one in found.items()
    }


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [
        ("-O2", None),
        ("--target=trn2", None),
        ("-O1", "NEURON_CC_FLAGS"),
        ("-O1", "NEURON_PLATFORM_TARGET_OVERRIDE"),
    ],
)
def test_other_arguments_and_platforms_are_other_programs(
    arguments, variable, make, compiled, monkeypatch
) -> None:
    """As are other variables of the compiler; the same again are not."""
    make()
    compiled.clear()
    if variable is not None:
        monkeypatch.setenv(variable, "trn3")

    make(arguments)
    assert NAMES == set(compiled)

    make(arguments)
    assert 4 == len(compiled)


def test_none_is_kept_if_not_wanted(make, compiled, tmp_path) -> None:
    """Nor used."""
    make(keep_programs=False)
    make(keep_programs=False)

    assert 8 == len(compiled)
    assert not (tmp_path / "cache/kept").exists()


def test_progress_is_logged(make, compiled, caplog) -> None:
    """A line for each program that is traced, and for each that is compiled or was before."""
    with caplog.at_level(logging.INFO, "decodekit"):
        make()
        make()

    messages = [record.getMessage() for record in caplog.records]
    compiled = [one for one in messages if one.startswith("compiling width_")]
    for found in (compiled[:4], compiled[4:]):
        assert {f"compiling {name}" for name in NAMES} == {one.partition(" …")[0] for one in found}
    assert [False] * 4 + [True] * 4 == [one.endswith(", compiled before") for one in compiled]
    assert 8 == sum(one.startswith("tracing width_") for one in messages)


class TestLayout:
    """``optimize_weight_layout``."""

    def test_leaves_the_text_as_it_is(self, build, compiled) -> None:
        """The program of one token over all positions is compiled first; weights are changed for all."""
        plain = build(keep_programs=False)
        compiled.clear()

        decoder = build(optimize_weight_layout=True)

        assert ["width_1_span_48", "width_5_span_48"] == compiled
        assert text(plain) == text(decoder)

    def test_is_of_the_program_that_samples(self, build, compiled) -> None:
        """If there is one, which has constants that other programs lack."""
        parts = {"processors": Temperature(0.8) | TopK(9), "sampler": Sample(seed=3)}
        plain = build(keep_programs=False)
        compiled.clear()

        decoder = build(parts=parts, optimize_weight_layout=True)

        assert compiled[0].startswith("fused_")
        assert compiled[0].endswith("_1_span_48")
        assert decoder.sampling_widths
        assert text(plain, **parts) == text(decoder, **parts)

    def test_is_kept_with_the_programs(self, make, compiled) -> None:
        """Programs of another layout are others; that which changes the layout has no name of its own."""
        make()
        compiled.clear()
        first = make(optimize_weight_layout=True)
        assert (4, "width_1_span_48") == (len(compiled), compiled[0])

        again = make(optimize_weight_layout=True)

        assert 4 == len(compiled)
        assert NAMES | {"layout_transformer"} == set(first) == set(again)
        assert all(one.was_kept for one in again.values())

    def test_is_saved(self, build, compiled, tmp_path) -> None:
        """A loaded decoder brings its weights into the layout."""
        decoder = build(optimize_weight_layout=True)
        decoder.save(tmp_path / "decoder")
        compiled.clear()

        loaded = load_decoder(tmp_path / "decoder")

        assert [] == compiled
        assert text(decoder) == text(loaded)

    def test_leaves_out_programs_without_weights(self, build) -> None:
        """The copy of rows has none."""
        plain = build(keep_programs=False)
        decoder = build({"copies_rows": True}, optimize_weight_layout=True)

        assert decoder.copies_rows
        assert text(plain) == text(decoder)

    @pytest.mark.parametrize(("platform", "cores"), [("trn1", 1), ("trn2", 2), ("trn3", 2)])
    def test_is_changed_by_as_many_cores_as_it_is_used(self, platform, cores, make, monkeypatch) -> None:
        """A program for another number does not run beside the others; arguments and variable say more."""
        from neuronx_distributed.trace import functions

        functions.logical_cores.clear()
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", platform)
        make(optimize_weight_layout=True)
        make("--lnc=1", optimize_weight_layout=True)
        monkeypatch.setenv("NEURON_CC_FLAGS", "--verbose=info --logical-nc-config 2")
        make(optimize_weight_layout=True)

        assert [cores, 1, 2] == functions.logical_cores

    def test_is_refused_without_nxd(self, tiny_model) -> None:
        """Before anything is traced."""
        with pytest.raises(ValueError, match="'optimize_weight_layout' must be False without NxD"):
            compile_decoder(
                tiny_model("llama"), target=TracedTarget(way="trace", optimize_weight_layout=True), **SHAPE
            )
