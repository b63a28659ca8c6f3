"""What sizing needs to know of a model, found out without its weights."""

import re
from os import PathLike

import attrs
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from .geometry import Geometry

_EXPERT = re.compile(r"(^|\.)experts\.")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ACTIVE_EXPERTS = ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k")


@attrs.frozen
class Weight:
    """A parameter or buffer."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    """Bytes of an element."""

    linear: bool
    """Whether it is the matrix of a linear layer, the kind that may be stored in fewer bits."""

    gathered: bool
    """Whether a token reads one row of it; an embedding that is not the output layer's too."""

    expert: bool
    """Whether a token reads it only if it is sent to that expert."""

    @property
    def count(self) -> int:
        """Elements."""
        return int(torch.Size(self.shape).numel())


@attrs.frozen
class ModelFacts:
    """A model in numbers."""

    architecture: str
    dtype: str
    parameters: int
    width: int
    """Numbers in a hidden state."""

    heads: int
    geometry: Geometry
    weights: tuple[Weight, ...]
    experts: int
    """Experts of a layer; 0 where there are none, or not known how many."""

    active_experts: int
    """Experts that a token is sent to in a layer."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> "ModelFacts":
        """
        The facts of *model*, whose tensors may be fake.

        Raises:
            UnsupportedArchitecture: It keeps something else than keys and values.
        """
        # The first to say that there is no attention.
        geometry = Geometry.of(model)
        config = model.config.get_text_config(decoder=True)
        return cls(
            architecture=type(model).__name__,
            dtype=str(model.dtype).removeprefix("torch."),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            width=config.hidden_size,
            heads=config.num_attention_heads,
            geometry=geometry,
            weights=_weights(model),
            experts=_first(config, _EXPERT_COUNTS),
            active_experts=_first(config, _ACTIVE_EXPERTS),
        )


def facts_of_config(
    model: str | PathLike[str], dtype: torch.dtype | None
) -> tuple[ModelFacts, PreTrainedModel]:
    """
    The facts of the model that a config describes, and that model, with shapes and no numbers.

    Args:
        model: A folder, a hub id, or the path of a config.json.

        dtype: None: the config's own.

    Raises:
        OSError: There is no config.

        ValueError: It describes no causal LM.

        UnsupportedArchitecture: The model keeps something else than keys and values.
    """
    config = AutoConfig.from_pretrained(str(model))
    with FakeTensorMode():
        found: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype or config.dtype or torch.float32
        )
        found.train(False)
        _choose_experts(found)
        return ModelFacts.of(found), found


def _choose_experts(model: PreTrainedModel) -> None:
    # The only one whose shapes do not hang on the numbers.
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")


def _weights(model: PreTrainedModel) -> tuple[Weight, ...]:
    # A tensor that is tied has several owners and counts once.
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            owners.setdefault(id(tensor), []).append(module)
    return tuple(
        Weight(
            name=name,
            shape=tuple(tensor.shape),
            itemsize=tensor.element_size(),
            linear=tensor.dim() == 2 and any(map(_is_linear, owners[id(tensor)])),
            gathered=all(isinstance(owner, nn.Embedding) for owner in owners[id(tensor)])
            and tensor.dim() == 2,
            expert=bool(_EXPERT.search(name)),
        )
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    )


def _is_linear(module: nn.Module) -> bool:
    # GPT-2's Conv1D is a linear layer too.
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _first(config: PretrainedConfig, names: tuple[str, ...]) -> int:
    found = (getattr(config, name, None) for name in names)
    return next((count for count in found if isinstance(count, int)), 0)
