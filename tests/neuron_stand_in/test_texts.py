"""Traced decoders generate the text of eager ones."""

from typing import Any

import pytest
import torch

from decodekit.decoding import MaxNewTokens, Sample
from decodekit.processors import RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import DraftModel, PromptLookup
from decodekit.testing import check_decoder

from ..neuron_backend.on_device import compiler_forbidden

# Of different lengths, and with the text long enough to leave the shorter span.
PROMPTS = [[5, 9, 2, 44, 17, 3, 8, 5, 9, 2], [60, 1, 30]]
SAMPLED: dict[str, Any] = {
    "processors": RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.95),
    "sampler": Sample(seed=7),
}
STOP = MaxNewTokens(45)


@pytest.mark.parametrize("sampling_parts", [{}, SAMPLED], ids=["greedy", "sampled"])
class TestTexts:
    """Token for token; on a device, up to rounding."""

    def test_plain(self, pair, sampling_parts):
        """Prompts in wide programs, single tokens in narrow ones, over both spans."""
        pair.check(sampling_parts, prompts=PROMPTS, stop=STOP)

    def test_with_prompt_lookup(self, pair, sampling_parts):
        """Verifications of several columns, mostly rewound."""
        pair.check(sampling_parts, PromptLookup(), prompts=PROMPTS, stop=STOP)

    def test_with_a_draft_model(self, pair, draft, sampling_parts):
        """A second traced decoder, each with its own cache."""
        found = pair.check(sampling_parts, DraftModel(draft), prompts=PROMPTS, stop=STOP)

        assert 0 < sum(found.statistics.accepted) < sum(found.statistics.drafted)


@pytest.fixture(scope="module")
def draft(pair):
    """An early exit after the first of two layers, traced in the same way."""
    return pair.compiled.early_exit(1, widths=(1, 16))


def test_nothing_is_compiled_for_a_text(pair, draft):
    """Neither by Neuron's compiler nor by XLA."""
    import torch_xla.debug.metrics as metrics

    metrics.clear_all()
    with compiler_forbidden():
        pair.check(SAMPLED, DraftModel(draft), prompts=PROMPTS, stop=STOP)

    assert metrics.counter_value("UncachedCompile") is None


def test_no_rule_of_the_compiler_is_broken(pair):
    """In any graph; and a strict target would have refused the traced HLO."""
    found = pair.compiled.lint()

    assert pair.compiled.compiler.strict
    assert {"width_1", "width_5", "width_16"} == {name.partition("_span")[0] for name in found}
    assert [] == [finding for findings in found.values() for finding in findings]


class TestForwards:
    """One forward at a time."""

    def test_obey_the_contract(self, pair):
        """Padding, rewinds, idle rows and refusals, as for every decoder."""
        check_decoder(pair.compiled)

    @pytest.mark.stand_in
    def test_logits_are_the_eager_ones(self, built, eager):
        """At every width, for ragged rows with padding on either side, with rewinds."""
        generator = torch.Generator().manual_seed(3)
        for start in range(0, 64, 16):
            ids = torch.randint(61, (2, 16), generator=generator)
            for decoder in (built.decoder, eager):
                decoder.forward(ids, torch.tensor([start, start]))
        for width, start in ((16, 0), (5, 12), (1, 14), (5, 9), (16, 20), (1, 36), (5, 40), (1, 5)):
            ids = torch.randint(61, (2, width), generator=generator)
            ids[0, : width // 3] = -1
            ids[1, width - width // 3 :] = -1
            cache_pos = torch.tensor([start, max(start - 2, 0)])

            found, expected = built.decoder.forward(ids, cache_pos), eager.forward(ids, cache_pos)

            scored = ids[:, -expected.shape[1] :] >= 0
            assert expected.shape == found.shape
            torch.testing.assert_close(found[scored], expected[scored], atol=1e-4, rtol=1e-4)

    def test_logits_are_float32_on_the_host(self, pair):
        """For any dtype on the device."""
        logits = pair.compiled.forward(torch.tensor([[1], [2]]), torch.tensor([0, 0]))

        assert (torch.float32, "cpu") == (logits.dtype, logits.device.type)
