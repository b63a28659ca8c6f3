"""Steps as Neuron's compilers get them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens
from decodekit.neuron_backend import CompiledDecoder, NativeTarget, compile_decoder
from decodekit.neuron_backend.kv_cache.shapes import decoder_shape, neuron_widths
from decodekit.neuron_backend.lowering.step_graphs import lower_step, program_shapes, spans_of

from ..targets.neuron.dynamo_stand_in import StandIn

Models = Callable[..., PreTrainedModel]

SERVED = ["llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "opt", "phi", "mixtral", "gemma2"]


class TestArchitectures:
    @pytest.mark.mostly_slow(every=5)
    @pytest.mark.parametrize("name", SERVED)
    def test_neuron_is_not_known_to_refuse_any(self, name: str, tiny_model: Models) -> None:
        """Several columns of several rows."""
        decoder = CompiledDecoder(tiny_model(name), batch_size=2, max_length=48, widths=(4,), spans=(48,))

        assert {"width_4_span_48": []} == decoder.lint()

    @pytest.mark.parametrize("name", ["gpt2", "mixtral", "gemma2"])
    def test_a_lowered_step_is_the_step(self, name: str, tiny_model: Models) -> None:
        """The logits, and every slot of the cache: of views, of experts, of layers of two kinds."""
        decoder = CompiledDecoder(tiny_model(name), batch_size=2, max_length=48, widths=(4,))
        lowered = lower_step(decoder.step, 4, decoder.cache, 48)
        ids, slots = torch.tensor([[1, 2, 3, 4], [5, 6, -1, 7]]), decoder.cache.addresses(48)
        caches: list[list[Tensor]] = [[b.clone() for b in decoder.cache.tensors] for _ in range(2)]
        with torch.no_grad():
            expected = decoder.step(ids, torch.tensor([0, 9]), slots, *caches[0])
            found = lowered(ids, torch.tensor([0, 9]), slots, *caches[1])

        torch.testing.assert_close(expected[ids >= 0], found[ids >= 0], atol=1e-4, rtol=1e-4)
        for one, other in zip(*caches, strict=True):
            # The spare slot's contents are arbitrary.
            torch.testing.assert_close(one[:, :, 1:], other[:, :, 1:], atol=1e-4, rtol=1e-4)

    @pytest.mark.slow
    def test_nor_trees_and_prompts(self, tiny_model: Models) -> None:
        """A forward over a tree, and one that scores its last column alone."""
        decoder = CompiledDecoder(
            tiny_model("gemma2"), max_length=48, widths=(2, 6), scored_width=2, tree_widths=(3,), spans=(48,)
        )

        assert {"width_2_span_48": [], "width_6_span_48": [], "tree_3_span_48": []} == decoder.lint()


class TestLint:
    def test_finds_what_a_device_does_not_have(self, tiny_model: Models) -> None:
        """Named by program; the message says what and why."""
        decoder = CompiledDecoder(tiny_model("llama", torch.float64), max_length=16, widths=(1,))
        (findings,) = decoder.lint().values()

        assert {"float64"} == {finding.rule for finding in findings}

    def test_leaves_the_model_as_it_was(self, tiny_model: Models) -> None:
        """Its experts use another implementation while traced."""
        decoder = CompiledDecoder(tiny_model("mixtral"), max_length=16, widths=(1,))
        before = decoder.step.model.config._experts_implementation
        decoder.lint()

        assert before == decoder.step.model.config._experts_implementation != "batched_mm"

    def test_reads_no_cache(self, llama: CompiledDecoder) -> None:
        """Even if the cache is on a device."""
        llama.cache = llama.cache.map(lambda buffer: buffer.to("meta"))
        lowered = lower_step(llama.step, 1, llama.cache, 64)

        assert all("meta" != value.device.type for value in lowered.state_dict().values())


class TestProgramShapes:
    @pytest.mark.parametrize(
        ("width", "expected"),
        [(1, (128, 256, 300)), (128, (128, 256, 300)), (129, (256, 300)), (300, (300,))],
    )
    def test_a_span_is_no_shorter_than_the_width(self, width: int, expected: tuple[int, ...]) -> None:
        """Spans shorter than the width get no program."""
        assert expected == spans_of(width, (128, 256, 300))

    def test_there_is_always_one(self) -> None:
        """A tree may have more columns than there are positions."""
        assert (16,) == spans_of(20, (8, 16))

    def test_are_named(self, tiny_model: Models) -> None:
        """Widths, then trees, by span."""
        decoder = CompiledDecoder(
            tiny_model("llama"), max_length=64, widths=(1, 40), tree_widths=(3,), spans=(32, 64)
        )

        assert [
            "width_1_span_32",
            "width_1_span_64",
            "width_40_span_64",
            "tree_3_span_32",
            "tree_3_span_64",
        ] == [shape.name for shape in program_shapes(decoder)]

    def test_prompts_have_two_for_each_width(self, tiny_model: Models) -> None:
        """The shortest span and the longest; what can run in every step has each span, and so have trees."""
        decoder = CompiledDecoder(
            tiny_model("llama"),
            max_length=64,
            widths=(1, 2, 33, 60),
            scored_width=1,
            tree_widths=(33,),
            spans=(34, 50, 64),
        )
        every = [34, 50, 64]

        assert {1: every, 2: every, 33: [34, 64], 60: [64]} == spans_by_width(decoder, "width")
        assert {33: every} == spans_by_width(decoder, "tree")
        assert {1: every, 2: every, 33: every, 60: [64]} == spans_by_width(
            decoder, "width", prompt_spans=True
        )

    @pytest.mark.parametrize(("max_length", "programs"), [(2048, 19), (8192, 27)])
    def test_the_defaults_are_this_many(self, max_length: int, programs: int) -> None:
        """Widths and spans of powers of two; each span for each width would be 25 and 42."""
        model = LlamaForCausalLM(
            LlamaConfig(
                hidden_size=8,
                num_hidden_layers=1,
                num_attention_heads=1,
                intermediate_size=8,
                vocab_size=16,
                max_position_embeddings=max_length,
            )
        )
        shape = decoder_shape(
            model.config, vocab_size=16, max_length=max_length, widths=neuron_widths(max_length)
        )
        decoder = CompiledDecoder.unchecked(model.eval(), shape)

        assert programs == len(program_shapes(decoder))

    def test_a_width_that_scores_every_column_is_not_for_prompts(self, tiny_model: Models) -> None:
        """It verifies draft tokens, in every step."""
        decoder = CompiledDecoder(
            tiny_model("llama"), max_length=64, widths=(1, 40), scored_width=40, spans=(48, 64)
        )

        assert {1: [48, 64], 40: [48, 64]} == spans_by_width(decoder, "width")

    def test_prompts_in_several_parts_are_read_as_a_whole(self, tiny_model: Models) -> None:
        """Two wide forwards each, of rows at different positions: the text of eager decoding."""
        shape: dict[str, Any] = {"batch_size": 2, "max_length": 96, "widths": (1, 33), "spans": (40, 64, 96)}
        compiled = compile_decoder(
            tiny_model("llama"),
            target=NativeTarget(backend=StandIn(), device="cpu"),
            **shape,
        )
        eager = compile_decoder(tiny_model("llama"), target="eager", **shape)
        prompts = [[(7 * index) % 60 + 1 for index in range(61)], [5, 9, 2]]

        first, second = (
            Generator(decoder, stop=MaxNewTokens(20))(prompts).ids for decoder in (compiled, eager)
        )

        assert second == first
        assert [41, 97] == list(compiled.programs[33].spans)


def spans_by_width(decoder: CompiledDecoder, kind: str, prompt_spans: bool = False) -> dict[int, list[int]]:
    """Spans of the programs of each width."""
    found: dict[int, list[int]] = {}
    for shape in program_shapes(decoder, prompt_spans):
        if shape.step.kind == kind:
            found.setdefault(shape.width, []).append(shape.span)
    return found
