"""A traced decoder's programs and cache on the device."""

import pytest
import torch

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.speculation import PromptLookup, SpeculativeGenerator

pytestmark = pytest.mark.stand_in

PROGRAMS = {"nxd": 5, "trace": 1}
"""Two widths by two spans, and the widest with the longer span; or one program."""


class TestPrograms:
    """Programs that XLA compiled."""

    def test_are_one_for_each_shape(self, built):
        """Including the comparison and the warm-up."""
        assert PROGRAMS[built.decoder.compiler.way] == built.executables

    def test_no_forward_compiles(self, built):
        """Neither text nor speculation; a value traced as a constant would."""
        import torch_xla.debug.metrics as metrics

        metrics.clear_all()

        Generator(built.decoder, stop=MaxNewTokens(40))([[1, 2, 3], [4]])
        SpeculativeGenerator(built.decoder, PromptLookup(), stop=MaxNewTokens(40))([[1, 2, 1, 2], [4]])

        assert metrics.counter_value("UncachedCompile") is None
        assert metrics.metric_data("CompileTime") is None
        assert metrics.counter_value("CachedCompile") > 40


class TestCache:
    """Keys and values on the device."""

    def test_is_written_in_place_by_every_program(self, built):
        """Keys and values of two layers, and their marks, are outputs aliased to their inputs."""
        assert 5 * PROGRAMS[built.decoder.compiler.way] == built.aliased

    def test_never_moves(self, built):
        """With every width and span, tokens and rewinds."""
        before = built.addresses()

        for span in built.decoder.spans:
            for width in built.decoder.shape.widths:
                ids = torch.full((2, width), 7)
                ids[:, 4:] = -1
                built.decoder.forward(ids, torch.tensor([3, 7]), span)

                assert before == built.addresses()
        assert 5 == len(set(before.values()))

    def test_is_one_for_all_programs(self, built, eager):
        """One width reads what another wrote, and the content equals an eager cache."""
        ids = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
        start = torch.tensor([0, 0])
        for decoder in (built.decoder, eager):
            decoder.forward(ids, start)
            decoder.forward(ids[:, :1], start + 5)

        names = [*(f"keys_{layer}" for layer in range(2)), *(f"values_{layer}" for layer in range(2))]
        assert sorted([*names, "overflow"]) == sorted(built.states)
        for name, expected in zip(names, eager.cache.states, strict=True):
            # The first slot is the spare one, with undefined content.
            torch.testing.assert_close(built.states[name].value.cpu()[:, :, 1:7], expected[:, :, 1:7])

    def test_is_not_on_the_host(self, built):
        """So that a stale copy cannot be read."""
        assert {"meta"} == {tensor.device.type for tensor in built.decoder.cache.tensors}
