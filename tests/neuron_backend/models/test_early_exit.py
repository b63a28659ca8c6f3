"""Early exit: the first layers of a decoder as a draft decoder."""

import copy

import pytest
import torch
import transformers

from decodekit.decoding import Generator, Greedy, MaxNewTokens, Sample
from decodekit.neuron_backend import CompiledDecoder, UnsupportedArchitecture, load_decoder
from decodekit.neuron_backend.models.early_exit import first_layers
from decodekit.speculation import DraftModel, SpeculativeGenerator
from decodekit.testing import check_decoder

LAYERS = 4
NAMES = ["llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "opt", "phi", "mixtral", "gemma2"]


def deep(tiny_model, name):
    """A model of four layers, the config of which is like that of the tiny one."""
    config = copy.deepcopy(tiny_model(name).config)
    types = getattr(config, "layer_types", None)
    config.num_hidden_layers = LAYERS
    if types:
        config.layer_types = types * 2
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def shallow(model, layers):
    """A stock model of fewer layers, built from its config, with the same state dict."""
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    fewer = transformers.AutoModelForCausalLM.from_config(config).eval()
    found = fewer.load_state_dict(model.state_dict(), strict=False)
    assert not found.missing_keys
    return fewer


def decoder(model, **changes):
    """An eager decoder of two rows."""
    return CompiledDecoder(model, **{"batch_size": 2, "max_length": 48, "widths": (1, 5, 24), **changes})


@pytest.mark.mostly_slow(every=5)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layers", [1, 3, LAYERS])
def test_is_the_stock_model_of_fewer_layers(name, layers, tiny_model, prefill):
    """The logits are those of a model built with fewer layers, beyond the window of those that have one."""
    model = deep(tiny_model, name)
    exit_ = decoder(model).early_exit(layers)
    rows = [list(range(1, 31)), list(range(20, 55))]
    fewer = shallow(model, layers)
    with torch.no_grad():
        expected = torch.stack([fewer(torch.tensor([row])).logits[0, -1] for row in rows])

    torch.testing.assert_close(prefill(exit_, rows, 2), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_shares_every_weight_and_changes_nothing(name, tiny_model):
    """Weights are shared, the decoder's model and config are unchanged, and each has its own cache."""
    target = decoder(deep(tiny_model, name))
    model = target.step.model
    before, count = copy.deepcopy(model.config.to_dict()), len(list(model.parameters()))
    exit_ = target.early_exit(2)
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    shared = [parameter.data_ptr() for parameter in exit_.step.model.parameters()]

    assert before == model.config.to_dict()
    assert count == len(list(model.parameters()))
    assert weights >= set(shared)
    assert len(shared) < count
    assert 2 == len(exit_.cache.keys)
    assert LAYERS == len(target.cache.keys)
    assert exit_.cache.keys[0].data_ptr() != target.cache.keys[0].data_ptr()


def test_has_the_shape_that_a_draft_needs(tiny_model):
    """Rows and positions of the target; widths for one token, two tokens, and prompts."""
    shape = decoder(deep(tiny_model, "llama")).early_exit(1).shape

    assert (2, 48, 61) == (shape.batch_size, shape.max_length, shape.vocab_size)
    assert ((1, 2, 24), 1) == (shape.widths, shape.scored_width)


def test_fits_the_smallest_decoder(tiny_model):
    """A decoder of one position has an early exit of one."""
    assert (1,) == decoder(deep(tiny_model, "llama"), max_length=1, widths=(1,)).early_exit(1).shape.widths


def test_other_widths_can_be_given(tiny_model):
    """An exit is a decoder like any other."""
    exit_ = decoder(deep(tiny_model, "gemma2")).early_exit(3, widths=(2, 6), scored_width=6)

    assert ((2, 6), 6) == (exit_.shape.widths, exit_.shape.scored_width)
    check_decoder(exit_)


@pytest.mark.mostly_slow(every=3)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
@pytest.mark.parametrize("layers", [1, 3, LAYERS])
def test_drafts_without_changing_the_text(name, layers, tiny_model):
    """Greedy or sampled, the text is plain decoding's; a draft from all layers is always accepted."""
    target = decoder(deep(tiny_model, name).double())
    draft = DraftModel(target.early_exit(layers))
    for seed in range(4):
        parts = {"sampler": Sample(seed) if seed else Greedy(), "stop": MaxNewTokens(16)}
        prompts = [[1 + seed, 2, 3], [40, 41, 42, 43, 44 + seed, 45]]
        plain = Generator(target, **parts)(prompts)
        fast = SpeculativeGenerator(target, draft, num_draft_tokens=4, **parts)(prompts)

        assert plain.ids == fast.ids
        if layers == LAYERS:
            assert 5.0 == fast.statistics.mean_accepted_length


@pytest.mark.slow
def test_of_a_compiled_decoder_is_compiled(compiled_gemma2, prefill):
    """It is compiled for the decoder's target, or for the given one; the logits are the same."""
    rows = [list(range(1, 31)), list(range(20, 55))]
    compiled = compiled_gemma2.early_exit(1, widths=(8,))
    eager = compiled_gemma2.early_exit(1, widths=(8,), target="eager")

    assert ("cpu", "eager") == (compiled.target, eager.target)
    torch.testing.assert_close(prefill(compiled, rows, 8), prefill(eager, rows, 8), atol=2e-5, rtol=1e-5)


def test_of_a_loaded_decoder(tiny_model, prefill, tmp_path):
    """A decoder from a folder has one too, and an early exit can be saved and loaded itself."""
    target = decoder(deep(tiny_model, "gemma2"))
    target.save(tmp_path / "target")
    exit_ = target.early_exit(3)
    exit_.save(tmp_path / "exit")
    rows = [list(range(1, 31)), list(range(20, 55))]
    expected = prefill(exit_, rows, 24).clone()

    assert torch.equal(expected, prefill(load_decoder(tmp_path / "target").early_exit(3), rows, 24))
    assert torch.equal(expected, prefill(load_decoder(tmp_path / "exit"), rows, 24))


def test_of_gpt_neo_has_a_config_of_as_many_layers(tiny_model, prefill, tmp_path):
    """Its types of layers and their repetitions too, by which the config of a saved exit is read."""
    config = {**tiny_model("gpt_neo").config.to_dict(), "num_layers": LAYERS}
    del config["attention_layers"]
    config = transformers.GPTNeoConfig(**{**config, "attention_types": [[["global", "local"], 2]]})
    exit_ = decoder(transformers.AutoModelForCausalLM.from_config(config).eval()).early_exit(3)
    exit_.save(tmp_path / "exit")
    rows = [list(range(1, 31)), list(range(20, 55))]
    expected = prefill(exit_, rows, 24).clone()
    found = exit_.step.model.config

    assert ["global", "local", "global"] == found.expand_attention_types_params(found.attention_types)
    assert torch.equal(expected, prefill(load_decoder(tmp_path / "exit"), rows, 24))


class TestRefusal:
    """What cannot be cut."""

    @pytest.mark.parametrize("layers", [0, -1, LAYERS + 1, True, 2.0, None])
    def test_of_a_number_that_is_none(self, layers, tiny_model):
        """At least one layer, at most all of them."""
        with pytest.raises(ValueError, match=r"'num_layers' must be an integer >= 1 and <= 4: got"):
            decoder(deep(tiny_model, "llama")).early_exit(layers)

    @pytest.mark.parametrize(("option", "value"), [("widths", ()), ("scored_width", 0), ("target", "gpu")])
    def test_of_other_options_is_the_decoders_own(self, option, value, tiny_model):
        """They are checked as those of any decoder."""
        with pytest.raises(ValueError, match=f"'{option}' must be"):
            decoder(deep(tiny_model, "llama")).early_exit(2, **{option: value})

    def test_of_layers_in_two_lists(self, tiny_model):
        """Two lists of as many modules as there are layers are ambiguous."""
        model = copy.deepcopy(deep(tiny_model, "llama"))
        model.others = torch.nn.ModuleList(torch.nn.Identity() for _ in range(LAYERS))

        with pytest.raises(UnsupportedArchitecture, match=r"LlamaForCausalLM .* one ModuleList: got 2"):
            first_layers(model, 2)
