"""The native target over two processes with gloo, against one process."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.neuron_backend import StaticDecoder
from decodekit.processors import Temperature, TopK

from ..two_ranks import written_by_ranks
from . import native_ranks_program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(
    tiny_model: Callable[..., PreTrainedModel], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """The results that each rank has written."""
    return written_by_ranks(
        native_ranks_program.__file__, tiny_model("llama"), tmp_path_factory.mktemp("ranks")
    )


def test_the_text_is_that_of_one_process(
    found: list[dict[str, Any]], tiny_model: Callable[..., PreTrainedModel]
) -> None:
    """Greedy and sampled, on both ranks, and after loading."""
    decoder = StaticDecoder(tiny_model("llama"), batch_size=2, max_length=32, widths=(1,))
    parts: dict[str, Any] = {"processors": Temperature(0.8) | TopK(20), "sampler": Sample(seed=7)}
    prompts, stop = native_ranks_program.PROMPTS, MaxNewTokens(20)
    greedy = Generator(decoder, stop=stop)(prompts).ids
    sampled = Generator(decoder, stop=stop, **parts)(prompts).ids

    for rank in found:
        assert (greedy, sampled, greedy) == (rank["greedy"], rank["sampled"], rank["loaded"])


def test_each_rank_has_a_whole_graph_over_its_heads(found: list[dict[str, Any]]) -> None:
    """With sums over the ranks; each tensor of the cache is written once; the lint finds nothing."""
    for rank in found:
        assert (1, 5, 1) == (rank["graphs"], rank["writes"], rank["heads"])
        assert rank["sums"] > 0
        assert [] == rank["findings"]


def test_a_saved_decoder_is_loaded_on_every_rank(found: list[dict[str, Any]]) -> None:
    """And no rank compiles while another does not."""
    assert [0, 0] == [rank["compiled again"] for rank in found]
