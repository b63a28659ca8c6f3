"""Forwards of single rows, and copies of rows."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.neuron_backend import (
    CompiledDecoder,
    NativeTarget,
    StaticDecoder,
    compile_decoder,
    load_decoder,
)
from decodekit.neuron_backend.targets.cpu import aoti
from decodekit.testing import check_decoder

Models = Callable[..., PreTrainedModel]

SHAPE = {"max_length": 40, "widths": (1, 5, 12), "scored_width": 5}


class TestEager:
    @pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
    def test_keep_the_contract(self, name: str, tiny_model: Models) -> None:
        """A forward of one row scores as one of all rows, and copies continue as their sources."""
        decoder = StaticDecoder(tiny_model(name), batch_size=3, **SHAPE)
        decoder.offer_rows((5, 12))

        check_decoder(decoder)

    def test_prompt_widths_are_offered(self, tiny_model: Models) -> None:
        """By default those beyond the scored width, and only where there are several rows."""
        offered = [
            compile_decoder(
                tiny_model("llama"), target="eager", batch_size=rows, row_widths=widths, **SHAPE
            ).row_widths
            for rows, widths in ((1, None), (2, None), (2, ()), (2, (5,)))
        ]

        assert [(), (12,), (), (5,)] == offered

    @pytest.mark.parametrize("widths", [(12, 5), (7,), (5, 5)])
    def test_other_widths_are_refused(self, widths: tuple[int, ...], tiny_model: Models) -> None:
        """They are ascending, and some of the decoder's."""
        with pytest.raises(
            ValueError, match=r"'row_widths' must be ascending, and of the widths \(1, 5, 12\)"
        ):
            compile_decoder(tiny_model("llama"), target="eager", batch_size=2, row_widths=widths, **SHAPE)

    def test_other_targets_are_refused(self, tiny_model: Models) -> None:
        """With the name of the option."""
        with pytest.raises(ValueError, match=r"'row_widths' must be empty for targets other than 'cpu'"):
            compile_decoder(
                tiny_model("llama"), target=NativeTarget(), batch_size=2, row_widths=(12,), **SHAPE
            )

    def test_samples_share_a_prefill(self, tiny_model: Models) -> None:
        """A prompt is fed to one row, and copied to the others: the texts are those of separate calls."""
        decoder = compile_decoder(tiny_model("llama", torch.float64), target="eager", batch_size=4, **SHAPE)
        generator = Generator(decoder, sampler=Sample(seed=2), stop=MaxNewTokens(6))
        prompt = list(range(1, 26))
        alone = [generator([prompt], random_streams=[number]).ids[0] for number in range(4)]
        other = Generator(
            compile_decoder(tiny_model("llama", torch.float64), target="eager", batch_size=4, **SHAPE),
            sampler=Sample(seed=2),
            stop=MaxNewTokens(6),
        )
        result = other([prompt], num_samples=4)

        assert alone == result.ids
        assert 3 * 24 == result.statistics.reused


@pytest.mark.slow
@pytest.mark.skipif(not aoti.has_compiler(), reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["llama", "bloom"])
def test_a_compiled_program_serves_every_row(name: str, tiny_model: Models, tmp_path: Path) -> None:
    """Of either form, loaded again too: with the bits of a forward of all rows, where these are exact."""
    decoder: CompiledDecoder = compile_decoder(tiny_model(name), target="cpu", batch_size=3, **SHAPE)
    decoder.save(tmp_path / "saved")
    ids = torch.randint(0, 60, (3, 12), generator=torch.Generator().manual_seed(1))
    start = torch.zeros(3, dtype=torch.int64)
    for one in (decoder, load_decoder(tmp_path / "saved")):
        assert (12,) == one.row_widths
        check_decoder(one)
        logits = one.forward(ids, start).clone()
        keys = [each.clone() for each in one.cache.keys]
        rows = torch.cat([one.forward_row(ids[row : row + 1], start[:1], row) for row in range(3)])
        if one.bit_exact:
            assert torch.equal(logits, rows)
            assert all(map(torch.equal, keys, one.cache.keys))
        assert torch.allclose(logits, rows, atol=1e-5)
