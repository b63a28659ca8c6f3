"""Traced decoders whose model is divided among the cores of one process."""

import json
import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.neuron_backend import UnsupportedArchitecture, compile_decoder, load_decoder
from decodekit.neuron_backend.targets.neuron.traced_target import TracedTarget
from decodekit.processors import RepetitionPenalty, Temperature, TopK, TopP
from decodekit.speculation import DraftModel, PromptLookup, SpeculativeGenerator
from decodekit.testing import check_decoder

pytestmark = pytest.mark.stand_in

SPANS = (64,)
PROMPTS = [[5, 9, 2, 44, 17, 3, 8, 5, 9, 2], [60, 1, 30]]
SAMPLED: dict[str, Any] = {
    "processors": RepetitionPenalty(1.2) | Temperature(0.8) | TopK(20) | TopP(0.95),
    "sampler": Sample(seed=7),
}
STOP = MaxNewTokens(40)
X = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(scope="module")
def divided(tiny_model, trace_decoder):
    """A decoder on two cores, each with two of four heads, and one of two key heads."""
    return trace_decoder(tiny_model("llama"), TracedTarget(way="nxd"), tp_degree=2, spans=SPANS)


@pytest.fixture(scope="module")
def draft(divided):
    """An early exit after the first of two layers, divided as well."""
    return divided.decoder.early_exit(1, widths=(1, 16))


@pytest.fixture(scope="module")
def saved(divided, tmp_path_factory):
    """The folder of the divided decoder."""
    folder = tmp_path_factory.mktemp("divided") / "decoder"
    divided.decoder.save(folder)
    return folder


class TestTexts:
    """Token for token as on one core."""

    @pytest.mark.parametrize("sampling_parts", [{}, SAMPLED], ids=["greedy", "sampled"])
    def test_plain(self, divided, eager, sampling_parts):
        """Prompts in wide programs, single tokens in narrow ones."""
        expected = Generator(eager, stop=STOP, **sampling_parts)(PROMPTS).ids

        assert expected == Generator(divided.decoder, stop=STOP, **sampling_parts)(PROMPTS).ids

    @pytest.mark.parametrize("sampling_parts", [{}, SAMPLED], ids=["greedy", "sampled"])
    def test_with_prompt_lookup(self, divided, eager, sampling_parts):
        """Verifications of several columns, mostly rewound."""
        expected = Generator(eager, stop=STOP, **sampling_parts)(PROMPTS).ids

        found = SpeculativeGenerator(
            divided.decoder, PromptLookup(), num_draft_tokens=4, stop=STOP, **sampling_parts
        )

        assert expected == found(PROMPTS).ids

    @pytest.mark.parametrize("sampling_parts", [{}, SAMPLED], ids=["greedy", "sampled"])
    def test_with_a_draft_model(self, divided, draft, eager, sampling_parts):
        """Divided like its target, with its own caches."""
        expected = Generator(eager, stop=STOP, **sampling_parts)(PROMPTS).ids

        fast = SpeculativeGenerator(
            divided.decoder, DraftModel(draft), num_draft_tokens=4, stop=STOP, **sampling_parts
        )
        found = fast(PROMPTS)

        assert 2 == draft.tp_degree
        assert expected == found.ids
        assert 0 < sum(found.statistics.accepted) < sum(found.statistics.drafted)

    def test_with_a_whole_draft_model(self, divided, eager, tiny_model):
        """Not divided, on the first core beside the target's part."""
        expected = Generator(eager, stop=STOP)(PROMPTS).ids
        whole = compile_decoder(
            tiny_model("llama"),
            batch_size=2,
            # A model of its own, since XLA caches other decoders' programs and counts them once.
            max_length=63,
            widths=(1, 16),
            spans=(63,),
            target=TracedTarget(way="nxd"),
        )

        fast = SpeculativeGenerator(divided.decoder, DraftModel(whole), num_draft_tokens=4, stop=STOP)

        assert expected == fast(PROMPTS).ids

    def test_obey_the_contract(self, divided):
        """Padding, rewinds, idle rows and refusals, as for every decoder."""
        check_decoder(divided.decoder)

    @pytest.mark.parametrize("name", ["qwen3", "mixtral", "gpt_neox"])
    def test_of_other_architectures(self, name, tiny_model, greedy, stock):
        """Per-head norms, experts, and biases that only the first core adds."""
        decoder = compile_decoder(
            tiny_model(name),
            batch_size=2,
            max_length=48,
            widths=(1, 8),
            scored_width=1,
            spans=(48,),
            target=TracedTarget(way="nxd"),
            tp_degree=2,
        )

        assert stock(tiny_model(name), PROMPTS, 30) == greedy(decoder, PROMPTS, 30)


class TestDevice:
    """State and programs on the cores."""

    def test_every_core_has_its_heads_of_the_cache(self, divided, eager):
        """Together they hold what one cache would, and no piece moves."""
        ids, start = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]), torch.tensor([0, 0])
        before = [[state.address for state in states.values()] for states in divided.cores]
        for decoder in (divided.decoder, eager):
            decoder.forward(ids, start)
            decoder.forward(ids[:, :1], start + 5)

        names = [*(f"keys_{layer}" for layer in range(2)), *(f"values_{layer}" for layer in range(2))]
        for name, expected in zip(names, eager.cache.states, strict=True):
            whole = torch.cat([states[name].value.cpu() for states in divided.cores], dim=1)
            # The first slot is the spare one, with undefined content.
            torch.testing.assert_close(whole[:, :, 1:7], expected[:, :, 1:7])
        assert before == [[state.address for state in states.values()] for states in divided.cores]

    def test_programs_are_compiled_once_for_all_cores(self, divided):
        """One for each width, with the cache of two layers and its marks written in place."""
        assert 3 == divided.executables
        assert 5 * 3 == divided.aliased

    def test_no_forward_compiles(self, divided):
        """Neither text nor speculation compiles, on either core."""
        import torch_xla.debug.metrics as metrics

        metrics.clear_all()

        SpeculativeGenerator(divided.decoder, PromptLookup(), stop=MaxNewTokens(20))([[1, 2, 1, 2], [4]])

        assert metrics.counter_value("UncachedCompile") is None
        assert metrics.counter_value("CachedCompile") > 20

    def test_programs_sum_among_cores(self, tiny_model, tmp_path):
        """For the embedding, after attention and MLP of each layer, for logits and overflows; no integers."""
        target = TracedTarget(way="nxd", compiler_workdir=str(tmp_path))
        compile_decoder(
            tiny_model("llama"), max_length=16, widths=(1,), spans=(16,), target=target, tp_degree=2
        )

        lines = (tmp_path / "width_1_span_16/graph.hlo").read_text().splitlines()

        sums = [line for line in lines if " all-reduce(" in line]
        assert 1 + 2 * 2 + 2 == len(sums)
        assert all("= (f32[" in line and "replica_groups={{0,1}}" in line for line in sums)


class TestSaving:
    """Saving and loading divided decoders."""

    def test_into_another_process(self, divided, saved, modules):
        """It traces nothing and generates the same text."""
        code = f"""
            import json
            import neuronx_distributed
            from decodekit.decoding import Generator, MaxNewTokens
            from decodekit.neuron_backend import load_decoder
            neuronx_distributed.ModelBuilder.trace = None
            decoder = load_decoder({str(saved)!r})
            ids = Generator(decoder, stop=MaxNewTokens(40))({PROMPTS!r}).ids
            print(json.dumps([decoder.target, decoder.tp_degree, decoder.compiled, ids]))
        """
        paths = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )

        assert 0 == process.returncode, process.stderr
        text = Generator(divided.decoder, stop=STOP)(PROMPTS).ids
        assert ["neuron-traced", 2, False, text] == json.loads(process.stdout.splitlines()[-1])

    def test_holds_the_whole_model_once(self, saved, tiny_model):
        """It is divided on loading."""
        model = tiny_model("llama")
        for name in ("lm_head.weight", "model.layers.0.self_attn.q_proj.weight"):
            whole = model.state_dict()[name]
            part = whole[: whole.shape[0] // 2].contiguous().numpy().tobytes()
            assert part in (saved / "model.safetensors").read_bytes()
            assert part not in (saved / "programs/nxd_model.pt").read_bytes()

    def test_for_another_number_of_cores_is_refused(self, saved, tmp_path):
        """Programs for two cores do not fit one."""
        import shutil

        import attrs

        from decodekit.neuron_backend.artifacts.manifest import Manifest

        folder = tmp_path / "one"
        shutil.copytree(saved, folder)
        attrs.evolve(Manifest.read(folder), tp_degree=1).write(folder)

        with pytest.raises(ValueError, match=r"their fingerprint must be .*: got"):
            load_decoder(folder, trust_programs=True)


class TestRefusals:
    """Models and targets that cannot be divided."""

    def test_of_heads_that_are_not_divisible(self, tiny_model):
        """The message has the possible degrees."""
        with pytest.raises(
            ValueError, match=r"'tp_degree' must divide .* of LlamaFor.*: got 3; 1 or 2 would do"
        ):
            compile_decoder(
                tiny_model("llama"), max_length=16, widths=(1,), target=TracedTarget(way="nxd"), tp_degree=3
            )

    def test_of_more_cores_than_there_are(self, tiny_model):
        """Raised by the device when it gets the weights."""
        with pytest.raises(RuntimeError, match="a model for 4 cores needs as many: got 2"):
            compile_decoder(
                tiny_model("gpt_neox"),
                max_length=16,
                widths=(1,),
                target=TracedTarget(way="nxd"),
                tp_degree=4,
            )

    def test_of_models_without_a_plan(self, tiny_model):
        """The message has the architecture."""
        with pytest.raises(UnsupportedArchitecture, match="GPT2LMHeadModel"):
            compile_decoder(
                tiny_model("gpt2"), max_length=16, widths=(1,), target=TracedTarget(way="nxd"), tp_degree=2
            )

    def test_of_tracing_without_nxd(self, tiny_model):
        """It has one core; the message says what supports more."""
        with pytest.raises(
            ValueError, match=r"'tp_degree' must be 1 .* without NxD.*: got 2; TracedTarget\(way='nxd'"
        ):
            compile_decoder(
                tiny_model("llama"), max_length=16, widths=(1,), target=TracedTarget(way="trace"), tp_degree=2
            )


class Sums(nn.Module):
    """A sum among cores, stored in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.weight = nn.Parameter(torch.full((3,), 2.0), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        from neuronx_distributed.parallel_layers.mappings import reduce_from_tensor_model_parallel_region

        self.total = self.total + reduce_from_tensor_model_parallel_region(self.weight * x)
        return self.total * 1.0


def weights(*values: float) -> list[dict[str, Tensor]]:
    """Weights for each core."""
    return [{"weight": torch.full((3,), value)} for value in values]


def traced() -> Any:
    """A traced :class:`Sums` for two cores, not started."""
    from neuronx_distributed import ModelBuilder, NxDParallelState

    with NxDParallelState(world_size=2, tensor_model_parallel_size=2):
        return ModelBuilder(Sums()).trace(kwargs={"x": X}, tag="one").compile()


class TestStandIn:
    """The stand-in runs correct calls, and refuses wrong ones or gives wrong results."""

    def test_sums_what_each_core_has_with_its_own_weights(self):
        """And each core stores the total."""
        model = traced()
        model.set_weights(weights(2.0, 5.0))
        model.to_neuron()

        assert [[7.0, 14.0, 21.0], [14.0, 28.0, 42.0]] == [model(x=X).tolist() for _ in range(2)]
        for core in range(2):
            assert [14.0, 28.0, 42.0] == model.read_from_neuron_buffer("total", core).tolist()

    @pytest.mark.parametrize("values", [(2.0,), (2.0, 5.0, 1.0)], ids=["too few", "too many"])
    def test_refuses_another_number_of_weight_lists(self, values):
        """One is required for each core."""
        with pytest.raises(ValueError, match=f"each of 2 ranks: got {len(values)}"):
            traced().set_weights(weights(*values))

    def test_refuses_a_weight_of_another_shape_on_one_core(self):
        """Memory would be misinterpreted."""
        model = traced()
        model.set_weights([*weights(2.0), {"weight": torch.ones(4)}])

        with pytest.raises(RuntimeError, match=r"weight must be as it was traced, .*\[3\].*: got .*\[4\]"):
            model.to_neuron()

    def test_states_begin_with_zeros(self):
        """Whatever the traced module and the weights hold."""
        model = traced()
        model.set_weights([{**own, "total": torch.ones(3)} for own in weights(1.0, 1.0)])
        model.to_neuron()

        assert [2.0, 4.0, 6.0] == model(x=X).tolist()

    def test_knows_no_sum_outside_of_the_parallel_state(self):
        """NxD has no groups there either."""
        from neuronx_distributed import ModelBuilder

        with pytest.raises(RuntimeError, match="group is not initialized"):
            ModelBuilder(Sums()).trace(kwargs={"x": X}, tag="one")

    def test_leaves_torch_distributed_as_it_was(self):
        """The parallel state only emulates processes."""
        from neuronx_distributed import NxDParallelState

        before = torch.distributed
        with NxDParallelState(world_size=2, tensor_model_parallel_size=2):
            assert 2 == torch.distributed.get_world_size()

        assert before is torch.distributed
        assert not torch.distributed.is_initialized()
