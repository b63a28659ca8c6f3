import copy
import itertools

import attrs
import pytest
import torch
import transformers
from hypothesis import given, strategies as st

from decodekit.decoding.protocols import DecoderShape
from decodekit.neuron_backend import StaticDecoder, UnsupportedArchitecture
from decodekit.neuron_backend.kv_cache.geometry import Geometry, LayerGeometry
from decodekit.neuron_backend.sizing.instances import GIB, instance_named, instance_names
from decodekit.neuron_backend.sizing.model_facts import ModelFacts, Weight, facts_of_config
from decodekit.neuron_backend.sizing.sizing import GuideEstimate, Sizing, int4_bytes
from decodekit.neuron_backend.tensor_parallel.parallel_layers import is_rank_buffer
from decodekit.neuron_backend.tensor_parallel.process_group import PROGRAM_GROUP
from decodekit.neuron_backend.tensor_parallel.ranks import Ranks
from decodekit.neuron_backend.tensor_parallel.sharded_model import shard_model

OPT_66B = {
    "num_hidden_layers": 64,
    "hidden_size": 9216,
    "num_attention_heads": 72,
    "ffn_dim": 4 * 9216,
    "word_embed_proj_dim": 9216,
    "max_position_embeddings": 2048,
    "dtype": "float16",
}


def sizing_of(model, *, batch_size=1, max_length=2048, spans=None, **more):
    """The sizes of a decoder over a model or its facts."""
    facts = model if isinstance(model, ModelFacts) else ModelFacts.of(model)
    shape = DecoderShape(batch_size, max_length, facts.geometry.vocab_size, (1,), 1)
    return Sizing(facts, shape, spans or (max_length,), **more)


def written(config, folder):
    """The path of a config.json in a folder without weights."""
    config.save_pretrained(folder)
    return folder / "config.json"


def made(config):
    """The model of a config."""
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def grouped(key_value_heads):
    """The config of a Llama with four heads and *key_value_heads* key/value heads."""
    return made(
        transformers.LlamaConfig(
            vocab_size=61,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=key_value_heads,
        )
    )


@pytest.fixture(scope="module")
def opt_66b(tmp_path_factory):
    """Facts from its config."""
    path = written(transformers.OPTConfig(**OPT_66B), tmp_path_factory.mktemp("opt-66b"))
    return facts_of_config(path, None)[0]


class TestGuide:
    """OPT-66B in half precision, 16 rows of 2048 positions, on Inf2."""

    def test_its_example(self, opt_66b):
        """12·64·9216²·2 bytes are 121.5 GiB, 16·64·2048·9216·2·2 are 72: 12.1 cores of 16 GiB, so 24."""
        sizing = sizing_of(opt_66b, batch_size=16)
        guide = GuideEstimate.of(sizing)

        assert (121.5, 72.0) == (guide.weight_bytes / GIB, guide.cache_bytes / GIB)
        assert 24 == guide.cores_needed(instance_named("inf2.48xlarge"))
        assert guide.cores_needed(instance_named("inf2.24xlarge")) is None

    def test_the_exact_sizes_add_what_it_leaves_out(self, opt_66b):
        """Embeddings, biases and norms; and the two slots besides the positions."""
        sizing = sizing_of(opt_66b, batch_size=16)
        guide = GuideEstimate.of(sizing)
        width, layers = 9216, 64
        left_out = (50272 + 2050) * width + layers * 13 * width + 2 * width

        assert 2 * left_out == sizing.weight_bytes - guide.weight_bytes
        assert guide.cache_bytes // 2048 * 2 == sizing.cache_bytes - guide.cache_bytes
        assert 24 == sizing.cores_needed(instance_named("inf2.48xlarge"))

    def test_int8_halves_its_weights(self, opt_66b):
        """Its formula has 1 byte per weight in int8; the cache is unchanged."""
        plain, stored = (GuideEstimate.of(sizing_of(opt_66b, storage=storage)) for storage in (None, "int8"))

        assert (plain.weight_bytes, plain.cache_bytes) == (2 * stored.weight_bytes, stored.cache_bytes)


LLAMA_2 = {
    "7B": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
    "13B": {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40},
}


class TestLlama2OnInf2:
    """
    The settings of a published benchmark: budget, latency and throughput, with 2048 positions.

    https://huggingface.co/blog/inferentia-llama2
    """

    @pytest.mark.parametrize(
        ("size", "batch", "instance", "degree", "core_gib", "at_most"),
        [
            ("7B", 1, "inf2.xlarge", 2, 6.8, 62),
            ("7B", 1, "inf2.48xlarge", 8, 1.7, 246),
            ("7B", 4, "inf2.48xlarge", 8, 2.1, 804),
            ("13B", 1, "inf2.48xlarge", 8, 3.2, 129),
            ("13B", 4, "inf2.48xlarge", 8, 3.8, 434),
        ],
    )
    def test_fits(self, size, batch, instance, degree, core_gib, at_most, tmp_path):
        """On its instance, divided among as many of its cores as divide the heads."""
        heads = LLAMA_2[size]["num_hidden_layers"]
        config = transformers.LlamaConfig(
            **LLAMA_2[size], num_attention_heads=heads, vocab_size=32_000, dtype="bfloat16"
        )
        sizing = sizing_of(facts_of_config(written(config, tmp_path), None)[0], batch_size=batch)
        place = instance_named(instance)

        assert degree == sizing.degrees(place)[-1]
        assert sizing.fits(place, degree)
        assert core_gib == round(sizing.core_bytes(degree) / GIB, 1)
        assert at_most == round(sizing.tokens_per_second(place.bandwidth, 2048, degree))


class TestMemory:
    """Against the tensors of real decoders."""

    @pytest.mark.parametrize(
        "name",
        ["llama", "mistral", "gpt2", "gpt_neox", "opt", "phi", "mixtral", "gemma2", "gemma3n", "qwen3"],
    )
    @pytest.mark.parametrize(("batch_size", "tree_widths"), [(1, ()), (3, (2, 7))])
    def test_is_what_a_decoder_holds(self, name, batch_size, tree_widths, tiny_model):
        """Weights and buffers, tied ones once, and the cache with its scratch."""
        decoder = StaticDecoder(
            tiny_model(name), batch_size=batch_size, max_length=40, widths=(1, 4), tree_widths=tree_widths
        )
        model = decoder.step.model
        sizing = sizing_of(model, batch_size=batch_size, max_length=40, scratch=max(tree_widths, default=0))

        assert sizing.weight_bytes == sum(tensor.nbytes for tensor in {*model.parameters(), *model.buffers()})
        assert sizing.cache_bytes == sum(tensor.nbytes for tensor in decoder.cache.states)
        assert sizing.slots == decoder.cache.slots
        assert sizing.position_bytes * batch_size * decoder.cache.slots == sizing.cache_bytes

    @pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "mixtral", "gemma2", "bloom"])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_needs_no_weights(self, name, dtype, tiny_model, tmp_path):
        """The config gives the same sizes as the model loaded in that dtype."""
        tiny_model(name).save_pretrained(tmp_path / "model")
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype)
        facts, _ = facts_of_config(written(model.config, tmp_path), getattr(torch, dtype))

        assert ModelFacts.of(model) == facts

    def test_of_the_configs_own_dtype(self, tmp_path):
        """The default dtype is the config's."""
        path = written(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, dtype="bfloat16"), tmp_path)
        facts, _ = facts_of_config(path, None)

        assert "bfloat16" == facts.dtype

    def test_a_model_that_cannot_be_rewound_is_refused(self, tiny_model, tmp_path):
        """With the reason that compiling it would give."""
        with pytest.raises(UnsupportedArchitecture, match=r"recurrent.* cannot be rewound"):
            facts_of_config(written(tiny_model("mamba").config, tmp_path), None)

    def test_a_config_without_heads_is_refused(self, tiny_model):
        """The error names what is missing."""
        model = copy.deepcopy(tiny_model("llama"))
        # A property that raises.
        model.config.__class__ = type(
            "Config", (transformers.LlamaConfig,), {"num_attention_heads": property()}
        )

        with pytest.raises(UnsupportedArchitecture, match="has no number num_attention_heads: got None"):
            ModelFacts.of(model)

    def test_layers_that_keep_nothing_are_layers(self, tiny_model):
        """Gemma-3n's last layers share an earlier layer's cache."""
        model = tiny_model("gemma3n")
        facts = ModelFacts.of(model)

        assert model.config.num_hidden_layers == facts.layers > len(facts.geometry.layers)

    def test_a_window_saves_nothing(self, tiny_model):
        """A sliding window is a mask; the cache is whole."""
        windowed, whole = tiny_model("mistral"), tiny_model("llama")

        assert 16 == windowed.config.sliding_window
        assert sizing_of(whole).cache_bytes == sizing_of(windowed).cache_bytes

    @pytest.mark.parametrize("key_value_heads", [1, 2, 4])
    def test_the_cache_has_the_key_value_heads_only(self, key_value_heads):
        """Its size is proportional to their number."""
        assert (
            key_value_heads * sizing_of(grouped(1)).cache_bytes
            == sizing_of(grouped(key_value_heads)).cache_bytes
        )


class TestCores:
    """Which degrees hold a model."""

    @pytest.mark.parametrize(("key_value_heads", "shares"), [(4, (4, 2, 1)), (2, (2, 1, 1)), (1, (1, 1, 1))])
    def test_a_key_value_head_is_not_split(self, key_value_heads, shares):
        """Each core of 1, 2 and 4 holds whole heads, shared if there are too few."""
        sizing = sizing_of(grouped(key_value_heads))
        head = sizing.cache_bytes // key_value_heads

        for degree, share in zip((1, 2, 4), shares, strict=True):
            whole = sum(weight.bytes for weight in sizing.model.weights if not weight.divided)
            divided = sizing.weight_bytes - whole
            assert -(-divided // degree) + whole + share * head == sizing.core_bytes(degree)

    @pytest.mark.parametrize("tied", [False, True])
    @pytest.mark.parametrize("left_out", [None, "model.embed_tokens", "lm_head"])
    def test_weights_are_where_a_shard_has_them(self, tied, left_out, monkeypatch):
        """Plans differ in embeddings; one that is tied to a divided head may be whole besides."""
        config = transformers.LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, tie_word_embeddings=tied,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config).eval()
        plan = {
            **model.tp_plan,
            "lm_head": "colwise_gather_output",
            "model.embed_tokens": "embedding_rowwise",
        }
        plan.pop(left_out, None)
        monkeypatch.setattr(type(model), "tp_plan", property(lambda self: plan))
        part = shard_model(model, Ranks(2, 0, PROGRAM_GROUP))
        tensors = {
            id(tensor): tensor.nbytes
            for name, tensor in (*part.named_parameters(), *part.named_buffers())
            if not is_rank_buffer(name)
        }
        sizing = sizing_of(model)

        assert sum(tensors.values()) == sizing.core_bytes(2) - sizing.cache_bytes // 2
        assert sizing.weight_bytes + sizing.cache_bytes == sizing.core_bytes(1)

    def test_degrees_divide_the_heads(self, opt_66b):
        """72 heads are divisible among 24 cores but not 16; 71 only among 1."""
        inf2, trn1 = instance_named("inf2.48xlarge"), instance_named("trn1.32xlarge")
        odd = attrs.evolve(opt_66b, heads=71)

        assert (1, 2, 4, 8, 12, 24) == sizing_of(opt_66b).degrees(inf2)
        assert (1, 2, 8) == sizing_of(opt_66b).degrees(trn1)
        assert (1,) == sizing_of(odd).degrees(inf2)
        assert sizing_of(odd).cores_needed(inf2) is None

    def test_memory_may_be_full(self, tiny_model):
        """To the last byte and no further."""
        sizing = sizing_of(tiny_model("llama"))
        instance = instance_named("inf2.xlarge")

        assert sizing.fits(attrs.evolve(instance, memory=sizing.core_bytes(2)), 2)
        assert not sizing.fits(attrs.evolve(instance, memory=sizing.core_bytes(2) - 1), 2)

    @given(
        st.sampled_from(instance_names()),
        st.sampled_from([1, 2, 8, 24, 64, 72]),
        st.integers(1, 8),
        st.integers(1, 512),
        st.integers(1, 10**6),
    )
    def test_needed_are_the_fewest_that_hold_it(self, name, heads, groups, layers, max_length):
        """Against a search over AWS's degrees with the sizes per core."""
        instance = instance_named(name)
        geometry = Geometry("", (LayerGeometry(groups, 128, groups, 64),) * layers, 7, torch.bfloat16)
        facts = ModelFacts("", "bfloat16", 0, 64 * heads, heads, layers, geometry, (), 0, 0)
        sizing = sizing_of(facts, max_length=max_length)

        def held(degree):
            return layers * -(-groups // degree) * 192 * (max_length + 2) * 2

        clip_widths = [d for d in instance.degrees if heads % d == 0 and held(d) <= instance.memory]
        assert min(clip_widths, default=None) == sizing.cores_needed(instance)


class TestReading:
    """Bytes that a decode step reads."""

    def test_all_weights_but_the_embedding_and_the_span(self, tiny_model):
        """One row of the embedding per token; the slots of the span and the spare one."""
        model = tiny_model("llama")
        sizing = sizing_of(model, batch_size=3, spans=(128, 2048))
        embedding = model.get_input_embeddings().weight
        weights = sizing.weight_bytes - embedding.nbytes + 3 * embedding[0].nbytes

        for span in (128, 2048):
            attended = 3 * (1 + span) * sizing.position_bytes
            assert weights + attended == sizing.step_bytes(span)

    def test_scratch_is_attended_to(self, tiny_model):
        """As in a forward of the decoder."""
        decoder = StaticDecoder(
            tiny_model("llama"), max_length=40, widths=(1,), tree_widths=(7,), spans=(8, 40)
        )
        with_trees, without = (
            sizing_of(decoder.step.model, max_length=40, scratch=scratch) for scratch in (7, 0)
        )
        slots = len(decoder.cache.addresses(8))

        assert 7 * without.position_bytes == with_trees.step_bytes(8) - without.step_bytes(8)
        assert (slots - 9) * without.position_bytes == with_trees.step_bytes(8) - without.step_bytes(8)

    def test_an_embedding_is_read_once_at_most(self, tiny_model):
        """For more rows than tokens in the vocabulary."""
        sizing = sizing_of(tiny_model("llama"), batch_size=62)

        assert sizing.weight_bytes + 62 * 129 * sizing.position_bytes == sizing.step_bytes(128)

    def test_an_embedding_that_is_the_output_too_is_read_whole(self, tiny_model):
        """OPT's is tied; its position embedding is only looked up."""
        model = tiny_model("opt")
        positions = model.model.decoder.embed_positions.weight
        sizing = sizing_of(model)
        weights = sizing.weight_bytes - positions.nbytes + positions[0].nbytes

        assert weights + 129 * sizing.position_bytes == sizing.step_bytes(128)

    def test_only_routed_experts_are_read(self, tiny_model):
        """2 of 4 for one row; the expected number under random routing for more."""
        model = tiny_model("mixtral")
        experts = sum(p.nbytes for name, p in model.named_parameters() if ".experts." in name)
        assert (4, 2) == (ModelFacts.of(model).experts, ModelFacts.of(model).active_experts)

        def read(batch_size):
            sizing = sizing_of(model, batch_size=batch_size)
            dense = attrs.evolve(sizing.model, weights=tuple(w for w in sizing.model.weights if not w.expert))
            return sizing.step_bytes(128) - sizing_of(dense, batch_size=batch_size).step_bytes(128)

        choices = list(itertools.combinations(range(4), 2))
        met = [len({*first, *second}) for first in choices for second in choices]

        assert experts / 2 == read(1)
        assert pytest.approx(experts / 4 * sum(met) / len(met)) == read(2)

    def test_experts_without_a_module_of_that_name(self):
        """JetMoE: those of its MLPs, and of its attention, whose router and bias all tokens read."""
        config = transformers.JetMoeConfig(
            vocab_size=61,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_key_value_heads=2,
            kv_channels=8,
            num_local_experts=4,
            num_experts_per_tok=2,
        )
        facts = ModelFacts.of(transformers.JetMoeForCausalLM(config).eval())

        parts = [f"{side}_linear.weight" for side in ("input", "output")]
        modules = ("mlp", "self_attention.experts")
        assert {f"model.layers.0.{module}.{part}" for module in modules for part in parts} == {
            weight.name for weight in facts.weights if weight.expert
        }

    def test_experts_in_fewer_bits_too(self, tiny_model):
        """As separate layers, as in transformers 4."""
        facts = ModelFacts.of(tiny_model("mixtral"))
        expert = Weight("experts.0.w1.weight", (64, 32), 4, True, False, False, True)
        sizing = sizing_of(attrs.evolve(facts, weights=(expert,)), storage="int8")

        assert 64 * (32 + 4) == sizing.weight_bytes
        assert sizing.weight_bytes / 2 + 129 * sizing.position_bytes == sizing.step_bytes(128)

    def test_cores_share_it(self, tiny_model):
        """Two cores read half of the divided weights and half the heads each."""
        sizing = sizing_of(tiny_model("llama"), batch_size=2)
        whole = sum(weight.bytes for weight in sizing.model.weights if not weight.divided)

        assert sizing.step_bytes(128) == 2 * sizing.step_bytes(128, 2) - whole

    def test_bandwidth_limits_the_tokens_of_all_rows(self, tiny_model):
        """Steps per second are bandwidth over bytes, and a step gives one token per row."""
        sizing = sizing_of(tiny_model("llama"), batch_size=4)
        step = sizing.step_bytes(128)

        assert 4 == sizing.tokens_per_second(step, 128)
        assert pytest.approx(8, rel=0.01) == sizing.tokens_per_second(step, 128, 2)


class TestStorage:
    """Quantised weights."""

    @pytest.mark.mostly_slow(every=5)
    @pytest.mark.parametrize("storage", ["int8", "int4"])
    @pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "mixtral", "phi"])
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_is_what_a_decoder_holds(self, name, storage, dtype, tiny_model):
        """Embeddings, norms, biases, routers and stacked experts stay; a tied head is untied."""
        options = {"max_length": 40, "widths": (1,), "dtype": dtype}
        plain = StaticDecoder(tiny_model(name), **options)
        model = StaticDecoder(tiny_model(name), weights=storage, **options).step.model
        held = sum(tensor.nbytes for tensor in {*model.parameters(), *model.buffers()})

        assert held == sizing_of(plain.step.model, storage=storage).weight_bytes

    @pytest.mark.parametrize("name", ["llama", "opt"])
    def test_the_embedding_is_looked_up(self, name, tiny_model):
        """Tied or not: one row per token, and the head in addition."""
        model = tiny_model(name)
        gathered = [m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)]
        sizing = sizing_of(model, batch_size=3, storage="int8")
        rows = sum(3 * table[0].nbytes - table.nbytes for table in gathered)

        assert sizing.weight_bytes + rows + 3 * 129 * sizing.position_bytes == sizing.step_bytes(128)

    def test_inputs_without_whole_groups_are_not_quantised(self):
        """33 inputs are not whole groups; 96 are three; 65 outputs are two blocks."""
        assert 7 * 33 * 2 == int4_bytes(7, 33, 2)
        assert 64 * (48 + 3 * 2 * 2) == int4_bytes(64, 96, 2)
        assert 128 * (48 + 3 * 2 * 2) == int4_bytes(65, 96, 2)
