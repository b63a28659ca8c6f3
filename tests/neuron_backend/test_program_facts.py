"""What decoders say about their programs."""

import attrs
import pytest
import torch

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import CompiledDecoder, compile_decoder
from decodekit.neuron_backend.targets.eager_target import EagerTarget


@attrs.frozen
class Program:
    """A program that knows its kernels."""

    run: object
    kernels: str
    bit_exact: bool

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.run(*inputs)  # type: ignore[operator, no-any-return]


def with_programs(decoder: CompiledDecoder, known: dict[int, tuple[str, bool]]) -> CompiledDecoder:
    """*decoder* with programs that say so, beside those that do not."""
    programs = {
        width: Program(run, *known[width]) if width in known else run
        for width, run in decoder.programs.items()
    }
    decoder.replace_programs(programs, {}, target=EagerTarget(), packages={}, compiled=True)
    return decoder


def test_an_eager_decoder_proves_nothing(llama: CompiledDecoder) -> None:
    """Its kernels are torch's, whose sums depend on the shape."""
    assert not llama.bit_exact
    assert "torch's eager kernels" == llama.kernels


def test_all_programs_must_be_bit_exact(llama: CompiledDecoder) -> None:
    """One that is not, or does not say so, may round in its own way."""
    own = ("own kernels", True)
    assert not with_programs(llama, {1: own, 5: own}).bit_exact
    assert not with_programs(llama, {1: own, 5: own, 16: ("own kernels", False)}).bit_exact
    assert with_programs(llama, {16: own}).bit_exact


def test_shared_models_are_not_proved(llama: CompiledDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of an all-reduce's sums is not ours."""
    with_programs(llama, dict.fromkeys((1, 5, 16), ("own kernels", True)))
    assert llama.bit_exact

    monkeypatch.setattr(llama, "ranks", object())
    assert not llama.bit_exact


def test_repr_says_which_programs_use_which_kernels(llama: CompiledDecoder) -> None:
    """Once if they use the same."""
    repr_of = "<CompiledDecoder for eager: batch_size=2, max_length=64, widths=(1, 5, 16), {}>"
    assert repr_of.format("torch's eager kernels") == repr(llama)

    own, other = ("own kernels (AVX-512)", True), ("torch's kernels", False)
    with_programs(llama, {1: own, 5: own, 16: other})
    listed = "own kernels (AVX-512): width_1, width_5; torch's kernels: width_16"
    assert repr_of.format(listed) == repr(llama)


def test_html_is_a_table_of_the_same(llama: CompiledDecoder) -> None:
    """For notebooks; kernels are named by their target, and escaped."""
    with_programs(llama, {1: ("<own>", True), 5: ("<own>", True), 16: ("<own>", True)})
    fields = {
        "target": "eager",
        "batch_size": 2,
        "max_length": 64,
        "widths": "(1, 5, 16)",
        "kernels": "&lt;own&gt;",
    }
    rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in fields.items())

    assert f"<b>CompiledDecoder</b><table>{rows}</table>" == llama._repr_html_()


@pytest.mark.parametrize("exact", [True, False])
def test_statistics_say_what_the_decoder_says(llama: CompiledDecoder, exact: bool) -> None:
    """Of the target."""
    with_programs(llama, dict.fromkeys((1, 5, 16), ("own kernels", exact)))

    result = Generator(llama, stop=MaxNewTokens(3))([[5, 9, 2]])

    assert exact is result.statistics.bit_exact
    assert exact == ("span: proved" in str(result.statistics))


class TestStages:
    """Of compiling and of early exit, on the eager target."""

    def test_of_compiling(self, tiny_model) -> None:
        """Each is told when it begins and when it ends."""
        told: list = []

        compile_decoder(
            tiny_model("llama"),
            dtype="bfloat16",
            max_length=32,
            widths=(1, 5),
            weights="int8",
            target="eager",
            progress=told.append,
        )

        assert [
            "loading LlamaForCausalLM",
            "quantising the weights to int8",
            "comparing the step in float32 with the stock model",
            "comparing the eager step with the stock model",
        ] == [one.name for one in told if one.seconds is not None]
        assert 8 == len(told)

    def test_of_early_exit(self, llama: CompiledDecoder) -> None:
        """The new decoder's own."""
        told: list = []
        llama.early_exit(1, progress=told.append)

        assert ["comparing the eager step with the stock model"] == [
            one.name for one in told if one.seconds is not None
        ]

    def test_invalid_options_are_refused_first(self, tiny_model) -> None:
        """Before anything is done."""
        with pytest.raises(TypeError, match="'progress' must be None, False or a callable: got True"):
            compile_decoder(tiny_model("llama"), target="eager", progress=True)  # type: ignore[arg-type]
