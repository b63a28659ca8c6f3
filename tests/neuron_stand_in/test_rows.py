"""Traced decoders that feed and copy single rows, with NxD."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from decodekit.decoding import Batcher, Generator, MaxNewTokens, Sample, Slots
from decodekit.neuron_backend import CompiledDecoder, compile_decoder, load_decoder
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget
from decodekit.processors import Temperature
from decodekit.testing import check_decoder

from .conftest import SHAPE, Built, build

pytestmark = pytest.mark.stand_in

ROWS: dict[str, Any] = {"batch_size": 3, "widths": (1, 16), "scored_width": 1, "row_widths": (16,)}
PROMPT = [5, 9, 2, 44, 17, 3, 8, 5, 9, 2, 44, 17, 3, 8, 1, 1, 4, 5, 60, 1, 30]
PARTS: dict[str, Any] = {
    "processors": Temperature(0.8),
    "sampler": Sample(seed=7),
    "stop": MaxNewTokens(20),
}


@pytest.fixture(scope="module")
def built(tiny_model: Callable[..., PreTrainedModel]) -> Built:
    """A decoder with programs of one row, and one that copies."""
    return build(tiny_model("llama"), TracedTarget(way="nxd"), copies_rows=True, **ROWS)


@pytest.fixture
def eager(tiny_model: Callable[..., PreTrainedModel]) -> CompiledDecoder:
    """The same decoder, eager."""
    return compile_decoder(tiny_model("llama"), target="eager", **{**SHAPE, **ROWS})


def test_keep_the_contract(built: Built) -> None:
    """A row scores as in a forward of all, leaves the others, and continues as its source does."""
    check_decoder(built.decoder)


def test_have_a_program_for_each_span(built: Built) -> None:
    """Two spans for one column, one for 16, the same for a row; and two that copy: all write in place."""
    assert (6, 6 * 5) == (built.executables, built.aliased)


def test_leave_the_cache_where_it_is(built: Built) -> None:
    """The same memory for forwards of one row and copies."""
    before = built.addresses()
    built.decoder.forward_row(torch.full((1, 16), 5), torch.tensor([3]), 1)
    for upto in (5, 40):
        built.decoder.copy_rows(torch.tensor([1, 1, 0]), upto)

    assert before == built.addresses()


def test_write_the_text_of_separate_calls(built: Built, eager: CompiledDecoder) -> None:
    """Samples of one prompt, which is fed to one row alone and copied."""
    Slots.of(built.decoder).forget()
    results = [Generator(one, **PARTS)([PROMPT], num_samples=3) for one in (eager, built.decoder)]

    assert results[0].ids == results[1].ids
    assert 2 * 20 == results[1].statistics.reused


def test_serve_requests(built: Built, eager: CompiledDecoder) -> None:
    """Newcomers are fed beside rows that decode, and share what others hold."""
    prompts = [PROMPT[:length] for length in (21, 20, 3, 18, 12, 21, 7)]
    alone = [Generator(eager, **PARTS)([prompt], random_streams=[0]).ids[0] for prompt in prompts]
    batcher = Batcher(built.decoder)
    submit = partial(batcher.submit, Generator(built.decoder, **PARTS).parts)
    handles = [submit(prompt, random_stream=0) for prompt in prompts]

    assert alone == [handle.result().ids[0] for handle in handles]


def test_are_saved(built: Built, tmp_path: Path) -> None:
    """And loaded with the rest."""
    built.decoder.save(tmp_path / "saved")
    loaded = load_decoder(tmp_path / "saved")

    assert ((16,), True) == (loaded.row_widths, loaded.copies_rows)
    check_decoder(loaded)


def test_are_divided_among_cores(tiny_model: Callable[..., PreTrainedModel]) -> None:
    """Each core has the rows of its heads."""
    decoder = build(
        tiny_model("llama"), TracedTarget(way="nxd"), tp_degree=2, spans=(64,), copies_rows=True, **ROWS
    ).decoder

    check_decoder(decoder)


@pytest.mark.parametrize("options", [{"row_widths": (16,)}, {"copies_rows": True}])
def test_need_nxd(options: dict[str, Any], tiny_model: Callable[..., PreTrainedModel]) -> None:
    """The one program of torch_neuronx alone feeds all rows."""
    with pytest.raises(ValueError, match=r"'row_widths' must be .* way 'nxd' compiles more"):
        compile_decoder(tiny_model("llama"), target=TracedTarget(way="trace"), **{**SHAPE, **options})
