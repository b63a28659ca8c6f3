"""The calls of a wrapped system that a forward becomes."""

import attrs
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.decoding.cache.slots import Slots
from decodekit.decoding.protocols import DecoderShape
from decodekit.neuron_backend import (
    CallableDecoder,
    NxDInferenceDecoder,
    OptimumNeuronDecoder,
    TransformersNeuronxDecoder,
)
from decodekit.neuron_backend.adapters import WrappedDecoder
from decodekit.speculation.draft_length.timed_widths import time_widths

from ...histories import history_of_rows
from .nxd_stand_in import CONTEXT, TOKEN, VERIFY, NxDModel
from .optimum_stand_in import OptimumModel
from .systems import LENGTH, Programs, Reference
from .tnx_stand_in import TnxModel

TEXT = [5, 9, 2, 44, 17, 3, 8]


@pytest.fixture(scope="module")
def model(tiny_model) -> PreTrainedModel:
    return tiny_model("llama", torch.float64)


@pytest.fixture(scope="module")
def reference(model: PreTrainedModel) -> Reference:
    return Reference(model)


@attrs.define
class Fed:
    """Feeds rows through Slots, as generators do."""

    decoder: WrappedDecoder

    def __call__(self, *texts: list[int], need: int = 1) -> Tensor:
        history = history_of_rows(texts, LENGTH)
        length = history.length[:, 0]
        return Slots.of(self.decoder).feed(history, length, torch.where(length > 0, need, 0)).logits


def calls(system, fed: Fed, *texts: list[int], need: int = 1) -> list[str]:
    """The system's calls while rows are brought up to *texts*."""
    before = len(system.routed)
    fed(*texts, need=need)
    return system.routed[before:]


class TestNxD:
    """neuronx-distributed-inference."""

    def test_prompts_are_encoded_row_by_row_and_tokens_together(self, model):
        """One call per prompt, one for all next tokens, one for a verification of all rows."""
        system = NxDModel(model, speculation_length=4)
        fed = Fed(NxDInferenceDecoder(system))

        assert [CONTEXT] * 3 == calls(system, fed, TEXT, TEXT[:6], TEXT[:5])
        assert [VERIFY] == calls(system, fed, [*TEXT, 1], [*TEXT[:6], 2], [*TEXT[:5], 3])
        more = [[*TEXT, 1, 4, 5, 6], [*TEXT[:6], 2, 4, 5], [*TEXT[:5], 3]]
        assert [VERIFY] == calls(system, fed, *more, need=3)

    def test_without_continuous_batching_they_are_encoded_at_once(self, model):
        """All rows in one call, whatever their lengths."""
        system = NxDModel(model, is_continuous_batching=False)

        assert [CONTEXT] == calls(system, Fed(NxDInferenceDecoder(system)), TEXT, [4, 4, 4, 4, 4, 4], [1, 2])

    def test_a_new_row_never_shares_a_call_with_a_running_row(self, model):
        """Its prompt first, then the other's token."""
        system = NxDModel(model, speculation_length=4)
        fed = Fed(NxDInferenceDecoder(system))
        fed(TEXT)

        assert [CONTEXT, VERIFY] == calls(system, fed, [*TEXT, 1], [3, 3, 3, 3, 3, 3, 3])
        assert [CONTEXT, VERIFY] == calls(system, fed, [*TEXT, 1, 2], [3, 3, 3, 3, 3, 3, 3, 1], [60])

    def test_a_prompt_longer_than_its_context_goes_on_through_verifications(self, model):
        """24 tokens in a bucket, then 4 per call."""
        system = NxDModel(model, speculation_length=4)

        assert [CONTEXT, *[VERIFY] * 2] == calls(system, Fed(NxDInferenceDecoder(system)), list(range(1, 33)))

    def test_many_tokens_after_a_common_prefix_are_prefilled_again(self, model, reference):
        """One call of context encoding instead of 18 of token generation; a few go through the latter."""
        system = NxDModel(model)
        fed = Fed(NxDInferenceDecoder(system))
        fed(TEXT)

        text = [*TEXT[:4], *range(30, 48)]
        assert [CONTEXT] == calls(system, fed, text)
        assert [TOKEN] * 5 == calls(system, fed, [*text[:16], 1, 2, 3, 4, 5])
        torch.testing.assert_close(fed(text)[0, 0], reference.after(tuple(text)), atol=1e-5, rtol=1e-5)

    def test_positions_after_the_context_are_kept(self, model):
        """A new row makes the others go through context encoding again, and feeds no more tokens."""
        system = NxDModel(model, speculation_length=4, is_continuous_batching=False)
        fed = Fed(NxDInferenceDecoder(system))
        fed(list(range(1, 33)))

        assert [CONTEXT, VERIFY] == calls(system, fed, list(range(1, 33)), TEXT)
        assert [VERIFY] == calls(system, fed, list(range(1, 34)), [*TEXT, 1])

    def test_scored_columns_at_the_beginning(self, model, reference):
        """The first is encoded, the others verified: context encoding scores one column only."""
        system = NxDModel(model, speculation_length=4)
        fed = Fed(NxDInferenceDecoder(system))
        logits = fed(TEXT[:4], need=4)

        assert [CONTEXT, VERIFY] == system.routed
        for column in range(4):
            expected = reference.after(tuple(TEXT[: column + 1]))
            torch.testing.assert_close(logits[0, column], expected, atol=1e-5, rtol=1e-5)

    def test_padding_alone_runs_its_program_once(self, model):
        """So that timing a forward of padding measures a call."""
        system = NxDModel(model, speculation_length=4, before_2_22=True)
        decoder = NxDInferenceDecoder(system)
        start = torch.zeros(3, dtype=torch.int64)
        for width in (1, 4):
            decoder.forward(torch.full((3, width), -1), start)

        assert [TOKEN, VERIFY] == system.routed

    def test_widths_are_timed_by_their_programs(self, model):
        """Not by that which encodes a prompt, though the rows are empty."""
        system = NxDModel(model, speculation_length=4, before_2_22=True)
        time_widths(NxDInferenceDecoder(system))

        assert [TOKEN, VERIFY] * 6 == system.routed

    def test_a_token_goes_through_the_program_of_one_token_where_there_is_one(self, model):
        """Before SDK 2.22, and through that of k + 1 columns otherwise."""
        for system in (NxDModel(model, speculation_length=4, before_2_22=True), NxDModel(model)):
            fed = Fed(NxDInferenceDecoder(system))
            fed(TEXT)
            assert [TOKEN] == calls(system, fed, [*TEXT, 1])
        system = NxDModel(model, speculation_length=4)
        fed = Fed(NxDInferenceDecoder(system))
        fed(TEXT)

        assert [VERIFY] == calls(system, fed, [*TEXT, 1])

    def test_single_tokens_up_to_the_last_position(self, model, reference):
        """At the end of a row a wide program is fed the row's own last tokens again."""
        decoder = NxDInferenceDecoder(NxDModel(model, speculation_length=4))
        text = [5 * token % 61 for token in range(LENGTH)]
        for position, token in enumerate(text):
            logits = decoder.forward(torch.tensor([[token], [-1], [-1]]), torch.tensor([position, 0, 0]))
            expected = reference.after(tuple(text[: position + 1]))
            torch.testing.assert_close(logits[0, 0], expected, atol=1e-5, rtol=1e-5)

    def test_logits_of_a_model_that_samples_on_the_device(self, model, reference):
        """If it returns them too; its graph still takes sampling parameters."""
        system = NxDModel(model, on_device_sampling_config=object(), output_logits=True)

        logits = Fed(NxDInferenceDecoder(system))(TEXT)

        torch.testing.assert_close(logits[0, 0], reference.after(tuple(TEXT)), atol=1e-5, rtol=1e-5)


class TestOptimum:
    """optimum-neuron."""

    def test_as_nxd_except_for_single_tokens(self, model):
        """Those go through token generation, even at position 0."""
        system = OptimumModel(model, speculation_length=4)
        fed = Fed(OptimumNeuronDecoder(system))

        assert ["token"] == calls(system, fed, [60], [4])
        assert ["context", "speculation"] == calls(system, fed, [60, 1, 2], [4, 3], TEXT)
        assert ["token", "speculation"] == calls(system, fed, *[TEXT[:4]] * 3, need=4)

    def test_chunks_are_written_and_the_last_token_is_scored(self, model):
        """7 + 7 + 2 tokens, the last of them again."""
        system = OptimumModel(model, prefill_chunk_size=7)

        assert ["chunk", "chunk", "chunk", "token"] == calls(
            system, Fed(OptimumNeuronDecoder(system)), list(range(1, 17))
        )


class TestTnx:
    """transformers-neuronx."""

    def test_rows_at_one_position_share_a_call(self, model):
        """Rows at other positions take one each."""
        system = TnxModel(model, "1-D", speculation_length=4)
        fed = Fed(TransformersNeuronxDecoder(system))

        assert ["context"] == calls(system, fed, TEXT, TEXT[::-1])
        assert ["token"] == calls(system, fed, [*TEXT, 1], [*TEXT[::-1], 2])
        assert ["speculation"] == calls(system, fed, [*TEXT, 1, 4, 5], [*TEXT[::-1], 2, 3], need=2)
        assert ["context", "token", "token"] == calls(system, fed, TEXT, [1, 2, 3], [*TEXT, 1, 4, 5])

    def test_ragged_prompts_at_one_position_are_scored_one_by_one(self, model):
        """The longest by context encoding, the others by token generation of their last token."""
        system = TnxModel(model, "1-D")

        assert ["context", "token", "token"] == calls(
            system, Fed(TransformersNeuronxDecoder(system)), TEXT, TEXT[:3], TEXT[:5]
        )

    def test_rows_at_many_positions_share_every_call(self, model):
        """Ragged prompts are encoded together, too."""
        system = TnxModel(model, "2-D", speculation_length=4)
        fed = Fed(TransformersNeuronxDecoder(system))

        assert ["context"] == calls(system, fed, TEXT, TEXT[:3], TEXT[:5])
        assert ["token"] == calls(system, fed, [*TEXT, 1], [*TEXT[:3], 2], [*TEXT[:5], 3])
        assert ["speculation"] == calls(
            system, fed, [*TEXT, 1, 2, 3], [*TEXT[:3], 2, 1], [*TEXT[:5], 3], need=2
        )


@pytest.mark.parametrize("layout", ["optimum", "2-D", "continuous"])
def test_a_prompt_of_one_token_is_a_token(layout, model, reference):
    """In a forward of any width, alone or beside others: context encoding would cost a whole bucket."""
    system = OptimumModel(model) if layout == "optimum" else TnxModel(model, layout)
    decoder = (OptimumNeuronDecoder if layout == "optimum" else TransformersNeuronxDecoder)(system)
    width = decoder.shape.widths[-1]
    ids = torch.full((3, width), -1)
    ids[:2, -1] = 9

    logits = decoder.forward(ids, torch.full((3,), 1 - width))

    assert ["token"] == system.routed
    torch.testing.assert_close(logits[1, 0], reference.after((9,)), atol=1e-5, rtol=1e-5)


class Watched(CallableDecoder):
    """Records the positions at which each call feeds each row."""

    def __init__(self, model: PreTrainedModel, shape: DecoderShape) -> None:
        own = Programs(model, shape, torch.int64, shared=False)
        self.fed: list[list[list[int]]] = []
        super().__init__(lambda ids, at: self.fed.append(at.tolist()) or own.step(ids, at), shape)


class TestIdleRows:
    """Rows without new tokens in a call of all rows."""

    def test_are_fed_after_their_tokens(self, model):
        """At unused positions, so that no token changes, not even by rounding."""
        decoder = Watched(model, DecoderShape(3, LENGTH, model.config.vocab_size, (1, 4, 8), 4))
        fed = Fed(decoder)
        fed(TEXT, TEXT[:3])
        decoder.fed.clear()

        decoder.forward(torch.tensor([[-1], [1], [-1]]), torch.tensor([0, 3, 0]))
        decoder.forward(torch.tensor([[-1] * 4, [5, 6, -1, -1], [-1] * 4]), torch.tensor([0, 4, 0]))

        assert [[[7], [3], [0]], [[7, 8, 9, 10], [4, 5, 6, 7], [0, 1, 2, 3]]] == decoder.fed

    def test_that_are_full_are_fed_their_own_last_tokens(self, model, reference):
        """No unused position is left."""
        decoder = Watched(model, DecoderShape(3, 8, model.config.vocab_size, (1, 4), 4))
        text = [*TEXT, 4]
        for start in (0, 4):
            decoder.forward(torch.tensor([text[start : start + 4]] * 3), torch.tensor([start] * 3))
        decoder.fed.clear()

        decoder.forward(torch.tensor([[-1] * 4, [-1] * 4, [9, 9, -1, -1]]), torch.tensor([0, 0, 2]))
        logits = decoder.forward(torch.tensor([[4], [-1], [-1]]), torch.tensor([7, 0, 0]))

        assert [[[4, 5, 6, 7], [4, 5, 6, 7], [2, 3, 4, 5]], [[7], [7], [4]]] == decoder.fed
        torch.testing.assert_close(logits[0, 0], reference.after(tuple(text)), atol=1e-5, rtol=1e-5)


class TestFailures:
    """A call that fails."""

    @pytest.mark.parametrize("fails_at", [0, 1, 2])
    def test_loses_nothing(self, fails_at, model, reference, monkeypatch):
        """Positions that it may have spoilt are fed again, in idle rows as well."""
        system = NxDModel(model, speculation_length=4, is_continuous_batching=False)
        decoder = NxDInferenceDecoder(system)
        fed = Fed(decoder)
        fed(TEXT, TEXT[:5])
        graph, count = system._graph, 0

        def breaks(*args):
            nonlocal count
            count += 1
            if count == fails_at + 1:
                # Spoil the positions that the call writes.
                tag, bucket, _, _, positions, *_ = args
                for row in range(3):
                    slots = range(bucket) if tag == CONTEXT else positions[row].tolist()
                    for kept in (kept for layer in system.device.cache for kept in layer):
                        kept[row, :, list(slots)] = 9.0
                raise RuntimeError("the device is gone")
            return graph(*args)

        monkeypatch.setattr(system, "_graph", breaks)
        texts = [*TEXT, 1, 2], [*TEXT[:5], 3], list(range(20, 50))
        # The system's own error is raised unchanged.
        with pytest.raises(RuntimeError, match="the device is gone"):
            fed(*texts)

        logits = fed(*texts)

        for row, text in enumerate(texts):
            torch.testing.assert_close(logits[row, 0], reference.after(tuple(text)), atol=1e-5, rtol=1e-5)


def test_a_failure_over_recorded_tokens_loses_nothing(model, reference):
    """A full row is fed its own tokens, which a failing call may spoil."""
    shape = DecoderShape(3, 8, model.config.vocab_size, (1, 4), 4)
    own = Programs(model, shape, torch.int64, shared=False)
    broken = False

    def step(ids: Tensor, positions: Tensor) -> Tensor:
        logits = own.step(ids, positions)
        if broken:
            for keys, values in own.device.cache:
                keys[0, :, positions[0]], values[0, :, positions[0]] = 9.0, 9.0
            raise RuntimeError("the device is gone")
        return logits

    decoder, text = CallableDecoder(step, shape), [*TEXT, 4]
    for start in (0, 4):
        decoder.forward(torch.tensor([text[start : start + 4]] * 3), torch.tensor([start] * 3))
    broken = True
    with pytest.raises(RuntimeError, match="the device is gone"):
        decoder.forward(torch.tensor([[-1] * 4, [-1] * 4, [9] * 4]), torch.tensor([0, 0, 2]))
    broken = False

    logits = decoder.forward(torch.tensor([[4], [-1], [-1]]), torch.tensor([7, 0, 0]))

    torch.testing.assert_close(logits[0, 0], reference.after(tuple(text)), atol=1e-5, rtol=1e-5)


def test_reset_forgets_what_was_fed(model, reference):
    """After something else has fed the model, everything is fed again."""
    system = NxDModel(model)
    decoder = NxDInferenceDecoder(system)
    fed = Fed(decoder)
    fed(TEXT)
    for keys, values in system.device.cache:
        keys.fill_(7.0)
        values.fill_(7.0)

    decoder.reset()
    logits = fed([*TEXT, 1])

    assert 1 == system.resets
    torch.testing.assert_close(logits[0, 0], reference.after((*TEXT, 1)), atol=1e-5, rtol=1e-5)
