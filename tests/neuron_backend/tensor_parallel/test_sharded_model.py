"""One model in two processes: the tokens of one process, half of the heads in each, and lost ranks."""

import contextlib
import copy
import json
import os
import pathlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.neuron_backend import StaticDecoder, UnsupportedArchitecture, compile_decoder, load_decoder
from decodekit.neuron_backend.artifacts.manifest import Manifest
from decodekit.neuron_backend.tensor_parallel.sharded_model import rank_weights
from decodekit.neuron_backend.tensor_parallel.sharding import ranks_of

from . import ranks_program
from .ranks_program import PROMPTS

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "gpt_neox", "phi", "mixtral", "gemma2", "phi3", "tied")

GROUPED: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}

THREE: dict[str, Any] = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}

UNSUPPORTED = "UnsupportedArchitecture"

Models = Callable[..., PreTrainedModel]


def random_model(config: Any) -> PreTrainedModel:
    """The same weights at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]
    return model


def with_biases(model: PreTrainedModel) -> PreTrainedModel:
    """Random biases: transformers initialises zeros, for which adding twice goes undetected."""
    generator = torch.Generator().manual_seed(0)
    model = copy.deepcopy(model)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.data.normal_(std=0.3, generator=generator)
    return model


@pytest.fixture(scope="module")
def models(tiny_model: Models) -> dict[str, PreTrainedModel]:
    """The models to shard, by name: fused projections and tied heads besides the usual ones."""
    own = {
        "phi3": transformers.Phi3Config(**GROUPED),
        "tied": transformers.LlamaConfig(**{**GROUPED, "tie_word_embeddings": True}),
    }
    return {
        name: random_model(own[name]) if name in own else with_biases(tiny_model(name))
        for name in ARCHITECTURES
    }


@pytest.fixture(scope="module")
def ranks(
    models: dict[str, PreTrainedModel], tiny_model: Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pathlib.Path]:
    """The folder with the results of two processes; run once."""
    folder = tmp_path_factory.mktemp("ranks")
    others = {
        "draft": random_model(transformers.LlamaConfig(**{**GROUPED, "num_hidden_layers": 1})),
        "three_key_heads": random_model(
            transformers.LlamaConfig(
                **{**GROUPED, "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3}
            )
        ),
        "odd_inner": random_model(transformers.LlamaConfig(**{**GROUPED, "intermediate_size": 45})),
        "even": random_model(transformers.LlamaConfig(**{**GROUPED, "vocab_size": 62})),
        "gpt2": tiny_model("gpt2"),
    }
    for name, model in {**{f"models/{name}": model for name, model in models.items()}, **others}.items():
        model.save_pretrained(folder / name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(rank_process(folder, rank, port, stack.enter_context(output)))
            for rank, output in enumerate((folder / f"{rank}.out").open("w") for rank in (0, 1))
        ]
        for process in processes:
            stack.callback(process.kill)
        for process in processes:
            process.wait(timeout=600)
        yield folder


def rank_process(folder: pathlib.Path, rank: int, port: int, output: IO[str]) -> subprocess.Popen[bytes]:
    """As torchrun starts it, but not ended when the other rank dies."""
    return subprocess.Popen(
        [sys.executable, ranks_program.__file__, str(folder)],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": "2",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        },
        stdout=output,
        stderr=subprocess.STDOUT,
    )


@pytest.fixture(scope="module")
def found(ranks: pathlib.Path) -> Callable[[str], list[Any]]:
    """Result of each rank for one part, rank 0's first."""

    def read(part: str) -> list[Any]:
        files = [ranks / f"{part}.{rank}.json" for rank in (0, 1)]
        if not all(file.exists() for file in files):
            pytest.fail("\n".join((ranks / f"{rank}.out").read_text()[-4000:] for rank in (0, 1)))
        return [json.loads(file.read_text()) for file in files]

    return read


@pytest.fixture(scope="module")
def whole(models: dict[str, PreTrainedModel]) -> Callable[[str], StaticDecoder]:
    """The decoder of one process."""
    return lambda name: ranks_program.decoder_of(models[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
class TestArchitectures:
    """Each against the same model in one process."""

    def test_the_same_tokens(self, name: str, found: Any, whole: Any) -> None:
        """Greedy and sampled, for a batch of different lengths, on both ranks."""
        expected = ranks_program.texts(whole(name))

        for rank in found("architectures"):
            assert expected == {kind: rank[name][kind] for kind in ("greedy", "sampled")}

    def test_the_same_logits_through_rewinds(
        self, name: str, found: Any, whole: Any, ranks: pathlib.Path
    ) -> None:
        """Equal to one process's up to rounding, and to each other bit for bit."""
        first, second = found("architectures")

        assert first[name]["bits"] == second[name]["bits"]
        logits = torch.load(ranks / f"{name}.logits.0.pt")
        for expected, actual in zip(ranks_program.rewinds(whole(name)), logits, strict=True):
            torch.testing.assert_close(expected, actual, rtol=1e-5, atol=1e-5)

    def test_each_rank_keeps_half_of_the_heads(self, name: str, found: Any, whole: Any) -> None:
        """Only Phi-3 keeps all: its plan gathers the fused projection before it is split."""
        heads = [buffer.shape[1] for buffer in whole(name).cache.states]
        expected = heads if name == "phi3" else [count // 2 for count in heads]

        for rank in found("architectures"):
            assert expected == rank[name]["heads"]


@pytest.mark.parametrize("drafter", ["whole", "divided", "early exit", "lookup"])
def test_speculation_gives_the_same_tokens(drafter: str, found: Any, whole: Any) -> None:
    """As plain decoding in one process, whatever the drafter."""
    expected = ranks_program.texts(whole("llama"))

    for rank in found("speculation"):
        assert expected == rank[drafter]


def test_rows_are_fed_and_copied(found: Any, ranks: pathlib.Path) -> None:
    """By all ranks: the samples of one prompt are those of the whole model, and it is fed once."""
    whole = compile_decoder(
        ranks / "draft", target="eager", dtype="float64", batch_size=3, max_length=64, widths=(1, 8)
    )
    result = Generator(whole, sampler=Sample(seed=7), stop=MaxNewTokens(8))([PROMPTS[0]], num_samples=3)
    expected = [[8], result.ids, 2 * (len(PROMPTS[0]) - 1)]
    for rank in found("single_rows"):
        assert {"eager": expected, "cpu": expected} == rank


def test_on_device_sampling_is_the_same(found: Any, whole: Any) -> None:
    """As on the host in one process; program names are equal on all ranks."""
    first, second = found("on_device_sampling")

    assert ranks_program.texts(whole("llama"))["sampled"] == first["sampled"] == second["sampled"]
    assert [True, True] == first["on device"] == second["on device"]
    assert first["names"] == second["names"]


def test_ranks_get_the_same_bits_in_every_precision(found: Any) -> None:
    """A sum over ranks is computed once, whatever its rounding."""
    first, second = found("precisions")

    assert {"bfloat16", "float16", "float32"} == set(first)
    assert first == second


class TestSaved:
    """A compiled decoder of two ranks as a folder."""

    def test_programs_are_compiled_and_loaded_again(self, found: Any) -> None:
        """One rank's programs serve both, and give the saved logits, bit for bit."""
        first, second = found("saving")

        for rank in (first, second):
            assert ["cpu", True, "cpu", False, 2] == rank["kinds"]
            assert rank["difference"] < 1e-4
        assert 1 == len({*first["bits"], *second["bits"]})

    def test_a_folder_of_something_else_is_refused_on_both(self, found: Any) -> None:
        """Rank 0 writes and fails; rank 1 gets the error."""
        first, second = (rank["errors"]["foreign folder"] for rank in found("saving"))

        assert first[0] == "ValueError"
        assert first[1].startswith("'folder' must be new, empty or a saved decoder")
        assert second[0] == "LostRank"
        assert "failure of rank 0: ValueError: 'folder' must be new" in second[1]

    @pytest.mark.parametrize("name", ["tied", "mixtral"])
    @pytest.mark.usefixtures("found")
    def test_the_weights_are_whole(
        self, name: str, ranks: pathlib.Path, models: dict[str, PreTrainedModel]
    ) -> None:
        """Without padding and shards: any program for Hugging Face models can read them."""
        stored = AutoModelForCausalLM.from_pretrained(ranks / f"saved_{name}").state_dict()
        expected = models[name].state_dict()

        assert set(expected) == set(stored)
        for key, tensor in expected.items():
            assert torch.equal(tensor, stored[key]), key
        assert 2 == Manifest.read(ranks / f"saved_{name}").tp_degree
        assert (name == "tied") == (
            "lm_head.weight" not in load_file(ranks / f"saved_{name}" / "model.safetensors")
        )

    def test_experts_come_back_divided(self, found: Any) -> None:
        """Loading under two processes shards again."""
        for rank in found("saving"):
            assert [1] * 4 == rank["heads"]

    @pytest.mark.usefixtures("found")
    def test_one_process_is_told_how_to_load_it(self, ranks: pathlib.Path) -> None:
        """The error has the command."""
        with pytest.raises(ValueError, match=r"number of processes, 1: got 2; .*torchrun --nproc-per-node 2"):
            load_decoder(ranks / "saved_tied")


class TestRefusals:
    """Models that cannot be sharded, and ranks that diverge."""

    @pytest.mark.parametrize(
        ("case", "kind", "text"),
        [
            (
                "degree",
                "ValueError",
                "'tp_degree' must be the number of processes, 2: got 3; start",
            ),
            (
                "keys",
                "LostRank",
                "'tp_degree' must divide num_key_value_heads = 3 of LlamaForCausalLM: got 2; 1 or 3 would do",
            ),
            ("inner", "LostRank", "must divide the outputs of model.layers.0.mlp.gate_proj.weight = 45 of"),
            (
                "no plan",
                "LostRank",
                "GPT2LMHeadModel is not supported: transformers has no tensor-par",
            ),
            ("a sum too many", UNSUPPORTED, "divided by its tensor-parallel plan it differs from the whole"),
            ("a sum too few", UNSUPPORTED, "divided by its tensor-parallel plan it does not run"),
            ("half of the head", UNSUPPORTED, "gives logits of another shape than the whole model"),
            ("other arguments", "ValueError", "every rank must make the same calls: got other arguments"),
            ("other rows", "ValueError", "every rank must make the same calls: got other arguments"),
            ("other ids", "ValueError", "every rank must feed the same ids at the same positions"),
            ("other widths", "ValueError", "every rank must feed the same ids at the same positions"),
        ],
    )
    def test_of(self, case: str, kind: str, text: str, found: Any) -> None:
        """On both ranks; where they load in turns, the first rank's error reaches the second."""
        first, second = (rank[case] for rank in found("errors"))

        refused = kind == UNSUPPORTED or case == "no plan"
        assert (UNSUPPORTED if refused else "ValueError", kind) == (first[0], second[0])
        assert text in first[1]
        assert text in second[1]

    def test_one_rank_that_fails_ends_both(self, found: Any) -> None:
        """At once, with its error, and they can continue."""
        first, second = found("errors")

        assert ["LostRank", "KeyError"] == [first["one fails"][0], second["one fails"][0]]
        assert "failure of rank 1: KeyError: 'what only rank 1 misses'" in first["one fails"][1]
        assert first["afterwards"] == second["afterwards"]

    @pytest.mark.parametrize("how", ["silent", "killed"])
    def test_a_lost_rank_ends_the_other(self, how: str, ranks: pathlib.Path) -> None:
        """It does not wait for ever for a rank that is dead or busy."""
        file = ranks / "lost.0.json"
        assert file.exists(), (ranks / "0.out").read_text()[-4000:]
        kind, text = json.loads(file.read_text())[how]

        assert "LostRank" == kind
        assert text.startswith("every rank must answer: got none")


class TestOneProcess:
    """One process."""

    def test_is_whole_without_a_degree(self, tiny_model: Models) -> None:
        """Nothing is sharded, and no rank is waited for."""
        decoder = compile_decoder(tiny_model("llama"), max_length=16, widths=(1,), target="eager")

        assert (1, None) == (decoder.tp_degree, ranks_of(decoder.step.model))


class TestRankWeights:
    """State dicts by rank, without processes."""

    @pytest.mark.parametrize("name", ARCHITECTURES)
    def test_together_they_are_the_model(self, name: str, models: dict[str, PreTrainedModel]) -> None:
        """Every element of every weight is on some rank, and all ranks have the same shapes."""
        whole = models[name].state_dict()
        first, second = rank_weights(models[name], 2)

        assert list(first) == list(second)
        assert list(whole) == [key for key in first if not key.endswith(".own_rank")]
        for key, tensor in whole.items():
            assert first[key].shape == second[key].shape
            if first[key].shape == tensor.shape:
                same = torch.equal(first[key], tensor) and torch.equal(second[key], tensor)
                assert same or (key.endswith(".bias") and not second[key].any()), key
                continue
            held = torch.cat([first[key].flatten(), second[key].flatten()]).tolist()
            # Uneven shards are padded with zeros.
            assert sorted(n for n in held if n) == sorted(n for n in tensor.flatten().tolist() if n), key

    def test_each_says_which_rank_it_is(self, models: dict[str, PreTrainedModel]) -> None:
        """In the layers that combine the ranks' outputs."""
        parts = rank_weights(models["llama"], 2)

        for rank, weights in enumerate(parts):
            marks = {key: mark for key, mark in weights.items() if key.endswith(".own_rank")}
            assert {"model.embed_tokens.own_rank", "lm_head.own_rank"} == set(marks)
            assert all([rank] == mark.nonzero().flatten().tolist() for mark in marks.values())

    def test_shard_what_the_sums_need(self, models: dict[str, PreTrainedModel]) -> None:
        """Outputs of the first matrix, inputs of the second: the ranks' products sum to the whole's."""
        mlp = models["llama"].model.layers[0].mlp
        states = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
        total = torch.zeros(3, 32)
        for weights in rank_weights(models["llama"], 2):
            gate, up, down = (
                weights[f"model.layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")
            )
            total += (torch.nn.functional.silu(states @ gate.T) * (states @ up.T)) @ down.T

        torch.testing.assert_close(mlp(states), total, rtol=1e-4, atol=1e-4)

    def test_tied_weights_are_one_tensor(self, models: dict[str, PreTrainedModel]) -> None:
        """On each rank."""
        for weights in rank_weights(models["tied"], 2):
            assert weights["lm_head.weight"] is weights["model.embed_tokens.weight"]

    def test_limits_are_named(self, models: dict[str, PreTrainedModel]) -> None:
        """With valid degrees."""
        with pytest.raises(ValueError, match=r"num_key_value_heads = 2 of LlamaForCausalLM: got 4; 1 or 2"):
            rank_weights(models["llama"], 4)

    def test_models_without_a_plan_are_refused(self, tiny_model: Models) -> None:
        """By name."""
        with pytest.raises(UnsupportedArchitecture, match=r"GPT2LMHeadModel .* no tensor-parallel plan"):
            rank_weights(tiny_model("gpt2"), 2)

    def test_a_plan_for_the_head_alone_is_refused(self, models: dict[str, PreTrainedModel]) -> None:
        """Each rank would hold all of the layers."""
        model = random_model(models["llama"].config)
        model._tp_plan = {"lm_head": "colwise_gather_output"}

        with pytest.raises(UnsupportedArchitecture, match="divides none of its layers"):
            rank_weights(model, 2)

    def test_quantised_weights_are_refused(self, models: dict[str, PreTrainedModel]) -> None:
        """Plans are for floating weights."""
        quantised = StaticDecoder(models["llama"], max_length=32, widths=(1,), weights="int8").step.model

        with pytest.raises(ValueError, match="floating weights, to be divided: got int8 in"):
            rank_weights(quantised, 2)

    def test_unknown_styles_are_refused(self, models: dict[str, PreTrainedModel]) -> None:
        """Rather than ignored."""
        model = random_model(models["llama"].config)
        model._tp_plan = {**model.tp_plan, "model.norm": "sequence_parallel"}

        with pytest.raises(UnsupportedArchitecture, match="style 'sequence_parallel', which is not known"):
            rank_weights(model, 2)
