import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from decodekit.neuron_backend import NativeTarget, StaticDecoder, compile_decoder

PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60, 1, 30]]


class TestCpu:
    """Programs compiled by AOTInductor."""

    def test_llama_gives_the_stock_models_text(self, compiled_llama, tiny_model, greedy, stock):
        """Ragged rows through two programs over one cache."""
        assert stock(tiny_model("llama"), PROMPTS, 40) == greedy(compiled_llama, PROMPTS, 40)

    def test_gemma2_gives_the_stock_models_text(self, compiled_gemma2, tiny_model, greedy, stock):
        """Beyond the sliding window of 16, with a prefill that scores one column."""
        assert stock(tiny_model("gemma2"), PROMPTS, 48) == greedy(compiled_gemma2, PROMPTS, 48)

    def test_equals_eager_with_padding_and_rewinds(self, compiled_llama, llama):
        """The same forwards, column by column, up to rounding."""
        generator = torch.Generator().manual_seed(3)
        for start in (0, 4, 2, 7, 5, 11):
            ids = torch.randint(-1, 61, (2, 5), generator=generator)
            ids[:, -1] = 7
            cache_pos = torch.tensor([start, max(start - 1, 0)])

            found, expected = compiled_llama.forward(ids, cache_pos), llama.forward(ids, cache_pos)

            torch.testing.assert_close(found[ids >= 0], expected[ids >= 0], atol=1e-4, rtol=1e-4)

    def test_slots_without_a_token_weigh_nothing(self, compiled_llama):
        """Garbage beyond the tokens and in the spare slot changes no bit."""
        ids, cache_pos = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]), torch.tensor([0, 0])
        compiled_llama.forward(ids, cache_pos)
        expected = compiled_llama.forward(ids, cache_pos + 5)
        reserved = compiled_llama.cache.reserved
        for buffer in compiled_llama.cache.tensors:
            buffer[:, :, :reserved] = 1e9
            buffer[:, :, reserved + 5 :] = 1e9

        assert torch.equal(expected, compiled_llama.forward(ids, cache_pos + 5))

    def test_ids_may_have_any_strides(self, compiled_llama):
        """A program reads memory as it lies, so views are copied before."""
        board = torch.arange(40).view(10, 4).T[1:3, ::2]
        cache_pos = torch.tensor([0, 9, 0])[::2]
        expected = compiled_llama.forward(
            board.clone(memory_format=torch.contiguous_format), cache_pos.clone()
        )

        assert torch.equal(expected, compiled_llama.forward(board, cache_pos))

    def test_programs_share_the_models_weights(self, compiled_llama, tiny_model):
        """No weight exists twice."""
        model = tiny_model("llama")

        for program in compiled_llama.programs.values():
            used = program._constants["model.lm_head.weight"]
            assert model.lm_head.weight.data_ptr() == used.data_ptr()

    def test_no_forward_compiles(self, compiled_llama, monkeypatch):
        """Once constructed, a decoder never meets the compiler again."""
        assert compiled_llama.target == "cpu"
        assert compiled_llama.compiled
        monkeypatch.setattr(torch.export, "export", None)
        monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", None)
        monkeypatch.setenv("PATH", "/nonexistent")

        for width in compiled_llama.shape.widths:
            logits = compiled_llama.forward(torch.ones(2, width, dtype=torch.int64), torch.tensor([0, 9]))

            assert logits.isfinite().all()

    def test_checks_come_first(self, compiled_llama):
        """A program would read beyond a narrow input."""
        with pytest.raises(ValueError, match=r"as wide as one of \(1, 5\)"):
            compiled_llama.forward(torch.ones(2, 3, dtype=torch.int64), torch.tensor([0, 0]))


class TestTarget:
    """What a decoder is compiled for."""

    def test_eager_compiles_nothing(self, tiny_model, monkeypatch):
        """Not even where there is a compiler."""
        monkeypatch.setattr("decodekit.neuron_backend.targets.aoti.compile_package", None)

        decoder = compile_decoder(tiny_model("llama"), max_length=16, widths=(1,), target="eager")

        assert (decoder.target, decoder.compiled) == ("eager", False)

    def test_auto_is_eager_without_a_compiler(self, tiny_model, monkeypatch):
        """And the decoder says so."""
        monkeypatch.setenv("CXX", "no-such-compiler")

        assert compile_decoder(tiny_model("llama"), max_length=16, widths=(1,)).target == "eager"

    def test_cpu_without_a_compiler_is_an_error(self, tiny_model, monkeypatch):
        """Whoever asks for programs gets programs or an error."""
        monkeypatch.setenv("CXX", "no-such-compiler")

        with pytest.raises(ValueError, match=r"needs a C\+\+ compiler"):
            compile_decoder(tiny_model("llama"), target="cpu")

    def test_unknown_ones_are_refused(self, tiny_model):
        """The error names those that there are."""
        with pytest.raises(
            ValueError, match=r"target must be one of auto, cpu, eager, neuron, .*: got 'tpu'"
        ):
            compile_decoder(tiny_model("llama"), target="tpu")


def test_a_path_is_loaded(tiny_model, tmp_path, greedy):
    """In the dtype of the checkpoint, or the one asked for."""
    tiny_model("qwen2").save_pretrained(tmp_path)
    expected = greedy(StaticDecoder(tiny_model("qwen2"), max_length=32, widths=(1, 4)), [[3, 4, 5]], 16)

    decoder = compile_decoder(tmp_path, max_length=32, widths=(1, 4), target="eager")
    half = compile_decoder(str(tmp_path), max_length=32, widths=(1, 4), target="eager", dtype="bfloat16")

    assert expected == greedy(decoder, [[3, 4, 5]], 16)
    assert torch.bfloat16 == half.step.model.dtype


def test_importing_does_not_import_the_compiler():
    """Who only loads programs waits for no compiler."""
    code = """
        import sys
        import decodekit.neuron_backend
        assert "torch._inductor.compile_fx" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, cwd=Path(os.sep))


@pytest.mark.parametrize("target", [None, 5, NativeTarget], ids=str)
def test_what_is_no_target_is_refused_before_anything_is_loaded(target):
    """The class of one, too; the model, which there is not, is not looked for."""
    with pytest.raises(TypeError, match="'target' must be a target such as NativeTarget"):
        compile_decoder("no such model", target=target)


@pytest.mark.parametrize("name", ["widths", "spans", "tree_widths"])
def test_one_number_is_no_sequence(name, tiny_model):
    """The message names the argument."""
    with pytest.raises(TypeError, match=f"'{name}' must be a sequence of whole numbers: got 4"):
        compile_decoder(tiny_model("llama"), **{"max_length": 8, "widths": (1,), name: 4}, target="eager")


def test_tree_widths_may_be_an_iterator(tiny_model):
    """They are looked at more than once."""
    decoder = compile_decoder(
        tiny_model("llama"), max_length=8, widths=(1,), tree_widths=iter((3,)), target="eager"
    )

    assert decoder.tree_widths == (3,)
