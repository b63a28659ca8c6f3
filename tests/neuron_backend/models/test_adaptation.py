import copy
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.bloom.modeling_bloom import BloomModel

from decodekit.neuron_backend.models.adaptation import adapt
from decodekit.neuron_backend.models.weights import copy_sharing_weights

Models = Callable[..., PreTrainedModel]

IDS = torch.tensor([[5, 9, 2, 44, 17, 3, 8, 60, 1, 30, 7, 7, 3, 2, 1, 9, 9, 21, 22, 23]])


@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("name", ["bloom", "falcon_alibi", "mpt", "gpt_neo"])
def test_without_our_cache_it_is_the_stock_model(name: str, use_cache: bool, tiny_model: Models) -> None:
    """Bit for bit, since the decoder is compared with it."""
    model = tiny_model(name)
    twin = copy_sharing_weights(model)
    with torch.no_grad():
        expected, found = (each(input_ids=IDS, use_cache=use_cache).logits for each in (model, twin))

    assert torch.equal(expected, found)
    assert [module for module in twin.modules() if "forward" in vars(module)]


def test_a_copy_runs_its_own_modules(tiny_model: Models) -> None:
    """A model that has been adapted can be copied and adapted again."""
    twin = copy_sharing_weights(copy_sharing_weights(tiny_model("mpt")))
    adapted = [module for module in twin.modules() if "forward" in vars(module)]

    assert 3 == len(adapted)
    assert adapted == [vars(module)["forward"].__self__ for module in adapted]


def test_code_from_elsewhere_stays_as_it_is(tiny_model: Models) -> None:
    """Remote code under a known class name is not adapted."""
    model = copy.deepcopy(tiny_model("bloom"))
    model.base_model.__class__ = type("BloomModel", (BloomModel,), {"__module__": "theirs"})
    adapt(model)

    assert not [module for module in model.modules() if "forward" in vars(module)]
