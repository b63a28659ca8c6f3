"""What sizing needs to know of a model, found out without its weights."""

import re
from os import PathLike
from pathlib import Path

import attrs
import torch
import transformers
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..kv_cache.geometry import Geometry
from ..models.model_source import is_hub_id
from ..models.unsupported import UnsupportedArchitecture

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
    """Whether it is the matrix of a linear layer, ``[out, in]``, which may be stored in fewer bits."""

    head: bool
    """Whether that layer is the one that gives the logits."""

    embedding: bool
    """Whether a token looks up a row of it; if it is linear too, the two are tied."""

    expert: bool
    """Whether a token reads it only if it is sent to that expert."""

    @property
    def bytes(self) -> int:
        """In its own dtype."""
        return torch.Size(self.shape).numel() * self.itemsize


@attrs.frozen
class ModelFacts:
    """A model in numbers."""

    architecture: str
    dtype: str
    parameters: int
    width: int
    """Numbers in a hidden state."""

    heads: int
    layers: int
    """Of which some may look at what an earlier one keeps, and are not in *geometry*."""

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
            UnsupportedArchitecture: It keeps something else than keys and values, or does not say
                how wide it is.
        """
        # The first to say that there is no attention.
        geometry = Geometry.of(model)
        config = model.config.get_text_config(decoder=True)
        return cls(
            architecture=geometry.architecture,
            dtype=str(model.dtype).removeprefix("torch."),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            width=_required(geometry.architecture, config, "hidden_size"),
            heads=_required(geometry.architecture, config, "num_attention_heads"),
            layers=_required(geometry.architecture, config, "num_hidden_layers"),
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

        ValueError: It describes no causal LM, or none that can be built.

        UnsupportedArchitecture: The model keeps something else than keys and values; or it is a mixture
            of experts and transformers is older than 5.
    """
    config = _config(model)
    # What is wrong with a config shows as any exception, from anywhere in a model's code.
    try:
        with FakeTensorMode():
            found: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config,
                dtype=dtype or config.dtype or torch.float32,
                # Others may look at the numbers of a mask.
                attn_implementation="eager",
            )
            found.train(False)
            _choose_experts(found)
            return ModelFacts.of(found), found
    except UnsupportedArchitecture:
        raise
    except Exception as error:
        # Where a class is none of the known ones, transformers lists all of those.
        what = "another kind of model" if _UNKNOWN in str(error) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"'model' must have the config of a causal LM{_parts(config)}: got {type(config).__name__} "
            f"in {str(model)!r}, {what}"
        ) from error


_UNKNOWN = "Unrecognized configuration class"


def _config(model: str | PathLike[str]) -> PretrainedConfig:
    if not Path(model).exists() and not is_hub_id(str(model)):
        raise FileNotFoundError(
            f"'model' must be a folder, a config.json, or a hub id such as 'user/name': got {str(model)!r}, "
            "which is neither: there is no such file"
        )
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(str(model))
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"'model' must have a config that transformers can read: got {str(model)!r}, "
            f"{type(error).__name__}: {error}"
        ) from error
    return config


def _parts(config: PretrainedConfig) -> str:
    """What may be done about a model of several parts."""
    if not hasattr(config, "text_config"):
        return ""
    return " (of a multimodal one, what stands under 'text_config' may be given as a config.json of its own)"


def _choose_experts(model: PreTrainedModel) -> None:
    # The only one whose shapes do not hang on the numbers. There was nothing to choose before
    # transformers 5.
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")
    elif _first(model.config.get_text_config(decoder=True), _EXPERT_COUNTS):
        raise UnsupportedArchitecture(
            type(model).__name__,
            f"its experts run only with numbers before transformers 5: got {transformers.__version__}",
        )


def _weights(model: PreTrainedModel) -> tuple[Weight, ...]:
    # A tensor that is tied has several owners and counts once.
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            owners.setdefault(id(tensor), []).append(module)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    named = (*model.named_parameters(), *model.named_buffers())
    return tuple(_weight(name, tensor, owners[id(tensor)], head) for name, tensor in named)


def _weight(name: str, tensor: Tensor, owners: list[nn.Module], head: nn.Module | None) -> Weight:
    matrix = tensor.dim() == 2
    # A subclass may do something else with its weight, so the exact type counts.
    linear = matrix and any(type(owner) in (nn.Linear, Conv1D) for owner in owners)
    # That of a Conv1D is transposed.
    transposed = linear and any(type(owner) is Conv1D for owner in owners)
    return Weight(
        name=name,
        shape=tuple(tensor.T.shape if transposed else tensor.shape),
        itemsize=tensor.element_size(),
        linear=linear,
        head=linear and any(owner is head for owner in owners),
        embedding=matrix and any(isinstance(owner, nn.Embedding) for owner in owners),
        expert=bool(_EXPERT.search(name)),
    )


def _required(architecture: str, config: PretrainedConfig, name: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int):
        raise UnsupportedArchitecture(architecture, f"its config has no number {name}: got {value!r}")
    return value


def _first(config: PretrainedConfig, names: tuple[str, ...]) -> int:
    found = (getattr(config, name, None) for name in names)
    return next((count for count in found if isinstance(count, int)), 0)
