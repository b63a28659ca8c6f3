"""The stand-ins make the calls, and raise the errors, of the libraries that they stand for."""

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from decodekit.neuron_backend.adapters import WrappedDecoder

from ..neuron_backend.adapters import systems
from ..neuron_backend.adapters.wrapped_checks import FORWARDS, check_forwards
from ..strategies import examples
from . import real_systems

pytestmark = pytest.mark.neuron_sources

PAIRS = {
    "nxd": (systems.nxd(), real_systems.nxd()),
    "nxd that verifies": (systems.nxd(speculation_length=5), real_systems.nxd(speculation_length=5)),
    "nxd of one batch": (
        systems.nxd(is_continuous_batching=False, speculation_length=5),
        real_systems.nxd(**real_systems.ONE_BATCH, speculation_length=5),
    ),
    "optimum that verifies": (
        systems.optimum(speculation_length=5),
        real_systems.optimum(speculation_length=5),
    ),
    "optimum of one batch": (
        systems.optimum(continuous_batching=False),
        real_systems.optimum(continuous_batching=False),
    ),
    "optimum in chunks": (systems.optimum(prefill_chunk_size=7), real_systems.optimum(prefill_chunk_size=7)),
    "tnx at one position": (
        systems.tnx("1-D", speculation_length=5),
        real_systems.tnx(speculation_length=5),
    ),
    "tnx at many positions": (
        systems.tnx("2-D", speculation_length=5),
        real_systems.tnx(padding_side="right", speculation_length=5),
    ),
    "tnx row by row": (systems.tnx("continuous"), real_systems.tnx(by_row=True)),
}
"""A stand-in and the library's own code, of the same settings."""

NAMES = {
    "context_encoding": "context",
    "token_generation": "token",
    "speculation_model": "speculation",
    "chunked_prefill": "chunk",
}
"""optimum-neuron's own names of its graphs, and the stand-in's."""


def calls(decoder: WrappedDecoder) -> list[str]:
    """The programs that were called."""
    return decoder._model.routed


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=examples(20))
@given(forwards=FORWARDS)
def test_the_same_programs_are_called(name, model, reference, forwards) -> None:
    """By any forwards, in the same order."""
    stand_in, real = (build(model) for build in PAIRS[name])
    for decoder in (stand_in, real):
        check_forwards(decoder, reference, forwards)

    named = [NAMES.get(call, call) for call in calls(real)] if "optimum" in name else calls(real)
    assert calls(stand_in) == named


def call(decoder: WrappedDecoder, columns: int, position: int, sampling: Tensor | None) -> None:
    """A call of one row, as NxD Inference takes it."""
    at = torch.arange(position, position + columns)[None]
    decoder._model(
        input_ids=torch.ones(1, columns, dtype=torch.int64),
        attention_mask=torch.ones(1, max(position, columns), dtype=torch.int64),
        position_ids=at,
        seq_ids=torch.tensor([0]),
        sampling_params=sampling,
    )


@pytest.mark.parametrize("at", [0, 1], ids=["stand-in", "real"])
class TestNxDErrors:
    def test_no_program_of_one_token(self, at, model) -> None:
        """A model with speculation_length has none."""
        decoder = PAIRS["nxd that verifies"][at](model)
        with pytest.raises(AttributeError, match="token_generation_model"):
            call(decoder, 1, 7, torch.ones(1, 3))

    def test_sampling_params_of_another_shape(self, at, model) -> None:
        """Those that the library makes have the rows of the cache; context encoding takes one."""
        decoder = PAIRS["nxd"][at](model)
        with pytest.raises(RuntimeError, match=r"\(3, 3\)"):
            call(decoder, 7, 0, None)
        call(decoder, 7, 0, torch.ones(1, 3))

    def test_a_position_that_no_bucket_holds(self, at, model) -> None:
        """A verification needs room for all its columns."""
        decoder = PAIRS["nxd that verifies"][at](model)
        with pytest.raises(ValueError, match="exceeds largest bucket"):
            call(decoder, 5, 44, torch.ones(1, 3))
