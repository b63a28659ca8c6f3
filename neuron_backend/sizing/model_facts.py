"""Facts of a model that sizing needs, read from its config without weights."""

import re
from collections.abc import Set
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
from ..models.gguf_file import is_gguf, load_gguf_config
from ..models.model_source import RemoteCodeError, is_hub_id, without_remote_code
from ..models.unsupported import UnsupportedArchitecture
from ..tensor_parallel.parallel_plan import ParallelPlan

# JetMoE's attention has its router and a bias of all tokens there.
_EXPERT = re.compile(r"(^|\.)experts\.(?!router\.|bias$)")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ACTIVE_EXPERTS = ("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k")


@attrs.frozen
class Weight:
    """A parameter or buffer."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    """Bytes per element."""

    linear: bool
    """Whether it is the matrix of a linear layer, ``[out, in]``, which may be quantised."""

    head: bool
    """Whether that layer is the output head."""

    embedding: bool
    """Whether it is an embedding, of which a token reads one row; if it is linear too, the two are tied."""

    expert: bool
    """Whether it belongs to an expert, which only the tokens routed to it read."""

    divided: bool = True
    """Whether each of several cores holds a part of it, rather than all of it."""

    whole_besides: bool = False
    """Whether each core holds it whole besides: an embedding that is tied to a divided output head."""

    @property
    def bytes(self) -> int:
        """Bytes in its own dtype."""
        return torch.Size(self.shape).numel() * self.itemsize


@attrs.frozen
class ModelFacts:
    """Sizes of a model."""

    architecture: str
    dtype: str
    parameters: int
    width: int
    """Hidden size."""

    heads: int
    layers: int
    """All layers; those that share an earlier layer's cache are not in *geometry*."""

    geometry: Geometry
    weights: tuple[Weight, ...]
    experts: int
    """Experts per layer; 0 if there are none, or their number is unknown."""

    active_experts: int
    """Experts per layer that a token is routed to."""

    tp_divisor: int = 1
    """What each ``tp_degree`` of :func:`~..compilation.compile_decoder` divides; 0 if all numbers do."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> "ModelFacts":
        """
        The facts of *model*, whose tensors may be fake.

        Raises:
            UnsupportedArchitecture: Its cache is not keys and values, or its config lacks its sizes.
        """
        # First, since it raises the best error for a model without attention.
        geometry = Geometry.of(model)
        config = model.config.get_text_config(decoder=True)
        experts = _first(config, _EXPERT_COUNTS)
        plan = _plan(model)
        return cls(
            architecture=geometry.architecture,
            dtype=str(model.dtype).removeprefix("torch."),
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            width=_required(geometry.architecture, config, "hidden_size"),
            heads=_required(geometry.architecture, config, "num_attention_heads"),
            layers=_required(geometry.architecture, config, "num_hidden_layers"),
            geometry=geometry,
            weights=_weights(model, experts, None if plan is None else plan.shards.keys()),
            experts=experts,
            active_experts=_first(config, _ACTIVE_EXPERTS),
            tp_divisor=1 if plan is None else plan.divisor,
        )


def facts_of_config(
    model: str | PathLike[str], dtype: torch.dtype | None
) -> tuple[ModelFacts, PreTrainedModel]:
    """
    The facts of the model that a config describes, and the model with fake tensors.

    Args:
        model: A folder, a hub id, a GGUF file, or the path of a config.json.

        dtype: None: the config's own.

    Raises:
        OSError: There is no config.

        ValueError: It does not describe a causal LM, or one that can be built.

        UnsupportedArchitecture: The model's cache is not keys and values; or it is a mixture of experts
            and transformers is older than 5.
    """
    config = _config(model)
    # A wrong config may raise any exception, anywhere in a model's code.
    try:
        with FakeTensorMode():
            found: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config,
                trust_remote_code=False,
                dtype=dtype or config.dtype or torch.float32,
                # Other implementations may read a mask's values, which fake tensors do not have.
                attn_implementation="eager",
            )
            found.train(False)
            _choose_experts(found)
            return ModelFacts.of(found), found
    except UnsupportedArchitecture:
        raise
    except Exception as error:
        # For an unknown class, transformers' message lists all known ones.
        what = "another kind of model" if _UNKNOWN in str(error) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"'model' must have the config of a causal LM{_parts(config)}: got {type(config).__name__} "
            f"in {str(model)!r}, {what}"
        ) from error


_UNKNOWN = "Unrecognized configuration class"


def _config(model: str | PathLike[str]) -> PretrainedConfig:
    if not Path(model).exists() and not is_hub_id(str(model)):
        raise FileNotFoundError(
            "'model' must be a folder, a GGUF file, a config.json, or a hub id such as 'user/name': got "
            f"{str(model)!r}, which is none of them: there is no such file"
        )
    try:
        if is_gguf(model):
            return load_gguf_config(model)
        with without_remote_code(model):
            config: PretrainedConfig = AutoConfig.from_pretrained(str(model), trust_remote_code=False)
    except (OSError, RemoteCodeError, UnsupportedArchitecture):
        raise
    except Exception as error:
        raise ValueError(
            f"'model' must have a config that transformers can read: got {str(model)!r}, "
            f"{type(error).__name__}: {error}"
        ) from error
    return config


def _parts(config: PretrainedConfig) -> str:
    """Advice for a multimodal model."""
    if not hasattr(config, "text_config"):
        return ""
    return " (of a multimodal one, what stands under 'text_config' may be given as a config.json of its own)"


def _choose_experts(model: PreTrainedModel) -> None:
    # The only implementation whose shapes do not depend on data. transformers before 5 has no choice.
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")
    elif _first(model.config.get_text_config(decoder=True), _EXPERT_COUNTS):
        raise UnsupportedArchitecture(
            type(model).__name__,
            f"its experts run only with numbers before transformers 5: got {transformers.__version__}",
        )


def _plan(model: PreTrainedModel) -> ParallelPlan | None:
    """How ``compile_decoder(tp_degree=)`` divides *model*; None if it does not."""
    try:
        return ParallelPlan.of(model, 1)
    except UnsupportedArchitecture:
        return None


def _weights(model: PreTrainedModel, experts: int, sharded: Set[str] | None) -> tuple[Weight, ...]:
    """The weights; those named *sharded* are divided among cores, or all if that is None."""
    # A tied tensor has several owners and names, and counts once.
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            owners.setdefault(id(tensor), []).append(module)
    names: dict[int, set[str]] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(tensor), set()).add(name)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    named = (*model.named_parameters(), *model.named_buffers())
    found = (
        (_weight(name, tensor, owners[id(tensor)], head, experts), names[id(tensor)])
        for name, tensor in named
    )
    return tuple(weight if sharded is None else _placed(weight, own, sharded) for weight, own in found)


def _placed(weight: Weight, names: Set[str], sharded: Set[str]) -> Weight:
    """*weight*, which has these *names*, where a plan that divides those *sharded* puts it."""
    divided = not names.isdisjoint(sharded)
    return attrs.evolve(weight, divided=divided, whole_besides=divided and not names <= sharded)


def _weight(
    name: str, tensor: Tensor, owners: list[nn.Module], head: nn.Module | None, experts: int
) -> Weight:
    matrix = tensor.dim() == 2
    # A subclass may do something else with its weight, so the exact type counts.
    linear = matrix and any(type(owner) in (nn.Linear, Conv1D) for owner in owners)
    # A Conv1D stores its weight transposed.
    transposed = linear and any(type(owner) is Conv1D for owner in owners)
    return Weight(
        name=name,
        shape=tuple(tensor.T.shape if transposed else tensor.shape),
        itemsize=tensor.element_size(),
        linear=linear,
        head=linear and any(owner is head for owner in owners),
        embedding=matrix and any(isinstance(owner, nn.Embedding) for owner in owners),
        # Where experts have no module of that name, they are one tensor: [experts, out, in].
        expert=bool(_EXPERT.search(name)) or (tensor.dim() == 3 and len(tensor) == experts),
    )


def _required(architecture: str, config: PretrainedConfig, name: str) -> int:
    value = getattr(config, name, None)
    if not isinstance(value, int):
        raise UnsupportedArchitecture(architecture, f"its config has no number {name}: got {value!r}")
    return value


def _first(config: PretrainedConfig, names: tuple[str, ...]) -> int:
    found = (getattr(config, name, None) for name in names)
    return next((count for count in found if isinstance(count, int)), 0)
