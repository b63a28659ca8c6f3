"""Programs that sample are compared with eager sampling."""

from functools import partial

import pytest
import torch

from decodekit.decoding import Sample
from decodekit.neuron_backend import UnsupportedArchitecture
from decodekit.neuron_backend.targets.eager_target import EagerTarget

from ..on_device_sampling.sampling import build


class TestProbe:
    """Programs that sample wrongly are refused."""

    def wrong(self, tiny_model, spoil):
        """Compile with a target that corrupts the programs' outputs."""

        class Wrong(EagerTarget):
            def compile(self, decoder):
                def spoiled(program, *inputs):
                    return spoil(*program(*inputs))

                decoder.fused_programs = {w: partial(spoiled, p) for w, p in decoder.fused_programs.items()}
                decoder.compare("the program")

        return build(tiny_model("llama"), sampler=Sample(seed=0), target=Wrong())

    def test_right_ones_pass(self, tiny_model):
        """Control."""
        assert self.wrong(tiny_model, lambda ids, logits: (ids, logits)).explain().on_device

    def test_another_token_is_refused(self, tiny_model):
        """Even if the logits are right."""
        with pytest.raises(UnsupportedArchitecture, match="samples other tokens in 24 columns of width 1"):
            self.wrong(tiny_model, lambda ids, logits: ((ids + 1) % 61, logits))

    def test_other_logits_are_refused(self, tiny_model):
        """Even if the sampled tokens are the same."""
        with pytest.raises(UnsupportedArchitecture, match="gives other logits when it samples, at width 1"):
            self.wrong(tiny_model, lambda ids, logits: (ids, logits * 1.01))

    def test_logits_that_are_no_numbers_are_refused(self, tiny_model):
        """Though the same token is sampled from them on the host."""
        with pytest.raises(
            UnsupportedArchitecture, match="gives other logits when it samples, at width 1 by nan"
        ):
            self.wrong(tiny_model, lambda ids, logits: (torch.full_like(ids, -1), logits * torch.nan))

    def test_failures_are_refused(self, tiny_model):
        """The error names the architecture."""
        with pytest.raises(UnsupportedArchitecture, match="failed to sample at width 1: ZeroDivision"):
            self.wrong(tiny_model, lambda ids, logits: 1 / 0)
