"""Shapes by name."""

import pytest
import torch
import transformers

from decodekit.benchmarks.models.shapes import SHAPES, shape_named

PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "mistral-7b": 7_241_732_096,
}
"""Parameter counts of the model cards."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_the_published_ones(name: str) -> None:
    """The parameter counts match the model cards."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(SHAPES[name].config(1))

    assert PARAMETERS[name] == model.num_parameters()


def test_an_unknown_name_is_refused() -> None:
    """The message lists the known names."""
    with pytest.raises(ValueError, match=r"'shape' must be one of .*llama-2-7b.*: got 'llama'"):
        shape_named("llama")


class TestScaled:
    def test_it_is_named_so(self) -> None:
        """A scaled-down shape is named as such."""
        small = shape_named("llama-2-70b").scaled(layers=2, hidden=8)

        assert (2, 1024, 3584, 8, 1) == (
            small.num_hidden_layers,
            small.hidden_size,
            small.intermediate_size,
            small.num_attention_heads,
            small.num_key_value_heads,
        )
        assert "SCALED DOWN from 80 layers of width 8192" in str(small)
        assert "SCALED DOWN" not in str(shape_named("llama-2-70b"))

    def test_unscaled_is_itself(self) -> None:
        """Without flags, or with a divisor of 1."""
        shape = shape_named("tiny")

        assert shape is shape.scaled()
        assert shape is shape.scaled(hidden=1)

    @pytest.mark.parametrize("scale", [{"layers": 0}, {"layers": 3}, {"hidden": 3}, {"hidden": 0}])
    def test_what_does_not_divide_is_refused(self, scale: dict[str, int]) -> None:
        """Refused before a model is built."""
        with pytest.raises(ValueError, match="must"):
            shape_named("tiny").scaled(**scale)


def test_random_weights_are_the_same_again() -> None:
    """The global random state is unchanged."""
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b = (shape_named("tiny").model(16, torch.float32) for _ in range(2))

    assert torch.equal(expected, torch.rand(3))
    assert torch.equal(a.lm_head.weight, b.lm_head.weight)
    assert a.config.eos_token_id is None
