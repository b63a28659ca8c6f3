"""Forwards of single rows, and copies of rows."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens, Sample, Slots
from decodekit.neuron_backend import (
    CompiledDecoder,
    NativeTarget,
    StaticDecoder,
    UnsupportedArchitecture,
    compile_decoder,
    load_decoder,
    row_steps,
)
from decodekit.neuron_backend.artifacts.manifest import Manifest
from decodekit.neuron_backend.artifacts.packages import Package
from decodekit.neuron_backend.lint.budget import Cost
from decodekit.neuron_backend.lowering.step_graphs import lower_step
from decodekit.neuron_backend.models.early_exit import first_layers
from decodekit.neuron_backend.row_steps import RowStep
from decodekit.neuron_backend.step import DecoderStep
from decodekit.testing import check_decoder

from ..toolchain_mark import needs_toolchain
from .targets.neuron.dynamo_stand_in import StandIn, calls

Models = Callable[..., PreTrainedModel]

SHAPE: dict[str, Any] = {"max_length": 40, "widths": (1, 5, 12), "scored_width": 5}
PROGRAMS: dict[str, Any] = {"batch_size": 3, "spans": (16, 40), "row_widths": (5, 12), "copies_rows": True}


class WithoutRows:
    """A target of a user's own, which does not know of single rows."""

    name = "mine"

    def require(self) -> None: ...

    def default_widths(self, max_length: int) -> tuple[int, ...]:
        return (1,)

    def compile(self, decoder: StaticDecoder) -> None: ...

    def check(self, manifest: Manifest) -> None: ...

    def load(self, decoder: StaticDecoder, packages: Mapping[str, Package], trust_programs: bool) -> None: ...


def native(backend: StandIn | None = None) -> NativeTarget:
    """TorchNeuron's target through its stand-in."""
    return NativeTarget(backend=StandIn() if backend is None else backend, device="cpu")


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

    @pytest.mark.parametrize("options", [{"row_widths": (12,)}, {"copies_rows": True}])
    def test_other_targets_are_refused(self, options: dict[str, Any], tiny_model: Models) -> None:
        """With the names of the options."""
        with pytest.raises(ValueError, match=r"'row_widths' must be \(\) and 'copies_rows' False for target"):
            compile_decoder(tiny_model("llama"), target=WithoutRows(), batch_size=2, **options, **SHAPE)

    def test_no_copies_may_be_wanted(self, tiny_model: Models) -> None:
        """Then a copy is refused, and texts are the same."""
        made = partial(compile_decoder, tiny_model("llama"), target="eager", batch_size=2, **SHAPE)
        texts = [
            Generator(made(copies_rows=copies), stop=MaxNewTokens(4))([list(range(1, 20))], num_samples=2).ids
            for copies in (True, False)
        ]

        assert texts[0] == texts[1]
        with pytest.raises(TypeError, match="it has no copies of rows"):
            made(copies_rows=False).copy_rows(torch.tensor([1, 0]), 3)

    def test_a_single_row_is_refused(self, tiny_model: Models) -> None:
        """It has no other to be copied from, and no neighbour to be spared."""
        for options in ({"row_widths": (12,)}, {"copies_rows": True}):
            with pytest.raises(ValueError, match="are for several rows, 'batch_size' >= 2: got 1 with"):
                compile_decoder(tiny_model("llama"), target="eager", **options, **SHAPE)

    def test_are_saved_and_cut(self, tiny_model: Models, tmp_path: Path) -> None:
        """A loaded decoder and an early exit have what the decoder has; an older folder, its target's."""
        made = partial(compile_decoder, tiny_model("llama"), target="eager", batch_size=2, **SHAPE)
        for copies, widths in ((True, (12,)), (False, ())):
            decoder = made(copies_rows=copies, row_widths=widths)
            decoder.save(tmp_path / str(copies))
            early = decoder.early_exit(1, widths=(1, 12))
            for one in (load_decoder(tmp_path / str(copies)), early):
                assert (copies, widths) == (one.copies_rows, one.row_widths)
        older = attrs.evolve(Manifest.read(tmp_path / "False"), copies_rows=None)
        older.write(tmp_path / "False")

        assert load_decoder(tmp_path / "False").copies_rows

    def test_copies_are_yes_or_no(self, tiny_model: Models) -> None:
        """Not a number of rows."""
        with pytest.raises(TypeError, match="'copies_rows' must be True, False or None: got 2"):
            compile_decoder(tiny_model("llama"), target="eager", copies_rows=2, **SHAPE)

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


@attrs.frozen(eq=False)
class Made:
    """A decoder for Neuron, and the backend that compiled it."""

    decoder: CompiledDecoder
    backend: StandIn


@pytest.fixture(scope="module")
def made(tiny_model: Models) -> Made:
    """Programs of single rows at two widths and spans, of one layer."""
    backend = StandIn()
    model = first_layers(tiny_model("llama"), 1)
    return Made(compile_decoder(model, target=native(backend), **PROGRAMS, **SHAPE), backend)


class TestNative:
    """Programs that are told the row, as TorchNeuron compiles them."""

    def test_are_compiled_only_if_asked_for(self, tiny_model: Models) -> None:
        """Each takes minutes to compile on a device."""
        model, shape = first_layers(tiny_model("llama"), 1), {"max_length": 16, "widths": (1, 8)}
        decoder = compile_decoder(model, target=native(), batch_size=2, scored_width=1, **shape)

        assert ((), False) == (decoder.row_widths, decoder.copies_rows)

    def test_keep_the_contract(self, made: Made, tmp_path: Path) -> None:
        """As the decoder that was saved and loaded does: a program for each width and span, and each copy."""
        made.decoder.save(tmp_path / "saved")
        backend = StandIn()
        again = load_decoder(tmp_path / "saved", target=native(backend))

        for one in (made, Made(again, backend)):
            assert ((5, 12), True) == (one.decoder.row_widths, one.decoder.copies_rows)
            assert 2 * (3 + 2 + 1) == len(one.backend.graphs)
            check_decoder(one.decoder)
        assert [] == backend.compiled

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["gemma2", "gpt2"])
    def test_keep_the_contract_in_other_models(self, name: str, tiny_model: Models) -> None:
        """With a window, and with weights by columns."""
        check_decoder(compile_decoder(tiny_model(name), target=native(), **PROGRAMS, **SHAPE))

    def test_no_forward_compiles(self, made: Made) -> None:
        """Rows and spans are inputs and programs that were warmed up."""
        compiled = len(made.backend.graphs)
        ids, start = torch.ones(1, 12, dtype=torch.int64), torch.tensor([20])
        for row in range(3):
            made.decoder.forward_row(ids, start, row)
        for upto in (0, 5, 16, 17, 40):
            made.decoder.copy_rows(torch.tensor([2, 0, 1]), upto)

        assert compiled == len(made.backend.graphs)

    def test_break_no_rule(self, made: Made) -> None:
        """Of the graphs' lint."""
        findings = made.decoder.lint()

        assert {"row_12_span_40", "copy_1_span_16"} <= set(findings)
        assert [] == [finding for found in findings.values() for finding in found]

    def test_copy_within_the_budget(self, made: Made) -> None:
        """Without another copy of the whole cache, and with one write of each tensor."""
        for span in (16, 40):
            graph = lower_step(made.decoder.copy_step, 1, made.decoder.cache, span)

            assert Cost(scatter_indices=0, buffer_copies=0, float64=0) == Cost.of(graph)
            assert [] == calls(graph, torch.ops.aten.copy.default)
            assert len(made.decoder.cache.tensors) == len(calls(graph, torch.ops.aten.copy_.default))

    def test_a_wrong_copy_is_found(self, tiny_model: Models, monkeypatch: pytest.MonkeyPatch) -> None:
        """When the decoder is compiled."""
        right = row_steps.copy_rows
        monkeypatch.setattr(
            row_steps, "copy_rows", lambda source, slots, cache: right(source * 0, slots, cache)
        )
        model, shape = first_layers(tiny_model("llama"), 1), {"max_length": 16, "widths": (1,)}
        with pytest.raises(UnsupportedArchitecture, match="scores copied rows otherwise than rows that were"):
            compile_decoder(model, target=native(), batch_size=2, copies_rows=True, **shape)

    def test_each_span_is_compared(self, tiny_model: Models, monkeypatch: pytest.MonkeyPatch) -> None:
        """Forwards of a row and copies alike: here those over the longer one are wrong."""
        right, score = row_steps.copy_rows, DecoderStep.score
        model = first_layers(tiny_model("llama"), 1)
        make = partial(compile_decoder, model, target=native(), batch_size=2, max_length=32, spans=(8, 32))

        def copy(source: Tensor, slots: Tensor, cache: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return right(source if len(slots) < 32 else source * 0, slots, cache)

        def wrong(self: DecoderStep, ids: Tensor, *inputs: Any) -> Any:
            moved = isinstance(self, RowStep) and len(inputs[1]) > 32
            return score(self, torch.full_like(ids, 7) if moved else ids, *inputs)

        with monkeypatch.context() as patch:
            patch.setattr(row_steps, "copy_rows", copy)
            with pytest.raises(UnsupportedArchitecture, match="scores copied rows otherwise than"):
                make(widths=(1,), copies_rows=True)
        monkeypatch.setattr(DecoderStep, "score", wrong)
        with pytest.raises(UnsupportedArchitecture, match="differs from the stock model"):
            make(widths=(1, 8), scored_width=1, row_widths=(8,))

    def test_samples_share_a_prefill(self, made: Made, tiny_model: Models) -> None:
        """One row is fed, and copied: the texts are an eager decoder's."""
        model = first_layers(tiny_model("llama"), 1)
        eager = compile_decoder(model, target="eager", batch_size=3, row_widths=(5, 12), **SHAPE)
        Slots.of(made.decoder).forget()
        results = [
            Generator(decoder, sampler=Sample(seed=2), stop=MaxNewTokens(6))(
                [list(range(1, 26))], num_samples=3
            )
            for decoder in (eager, made.decoder)
        ]

        assert results[0].ids == results[1].ids
        assert 2 * 24 == results[1].statistics.reused


@pytest.mark.slow
@needs_toolchain
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
