"""The CUDA target over two processes with gloo and stand-ins for a GPU, against one process."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import StaticDecoder

from ..two_ranks import written_by_ranks
from . import cuda_ranks_program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(
    tiny_model: Callable[..., PreTrainedModel], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """The results that each rank has written."""
    return written_by_ranks(
        cuda_ranks_program.__file__, tiny_model("llama"), tmp_path_factory.mktemp("ranks")
    )


def test_the_text_is_that_of_one_process(
    found: list[dict[str, Any]], tiny_model: Callable[..., PreTrainedModel]
) -> None:
    """Greedy, sampled by the program, and after loading; on both ranks, each with half the heads."""
    decoder = StaticDecoder(tiny_model("llama"), batch_size=2, max_length=32, widths=(1,))
    prompts, stop = cuda_ranks_program.PROMPTS, MaxNewTokens(20)
    greedy = Generator(decoder, stop=stop)(prompts).ids
    sampled = Generator(decoder, stop=stop, **cuda_ranks_program.PARTS)(prompts).ids

    for rank in found:
        assert (greedy, sampled, greedy) == (rank["greedy"], rank["sampled"], rank["loaded"])
        assert (True, 1) == (rank["can_sample"], rank["heads"])
