"""Own kernels in place of parts of transformers' models, while a model is traced for the CPU."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...quantization.quantized_matmul import cpu_matmul
from ...step import Step
from .kernel_library import Kernels
from .kernel_operations import has_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_NAME = "decodekit"

# Options of some models' attention that have a part in the scores. Unknown ones are found when a program is
# compared with the stock model.
_OTHER_SCORES = ("position_bias", "sinks")


@contextmanager
def traced_kernels(step: Step, kernels: Kernels) -> Iterator[None]:
    """
    Use own kernels while *step* is traced.

    They compute the products of quantised layers and of experts, and attention with soft-capped scores or
    sinks. :func:`~.graph_rewrites.rewrite_graph` replaces the rest in the graph.

    Args:
        step: The step.

        kernels: Kernels, used for the dtype that they take.
    """
    with cpu_matmul(step, kernels):
        if not kernels.takes(step.model.dtype):
            yield
            return
        _register()
        with (
            # Models that transformers computes by `scaled_dot_product_attention` are rewritten in the graph.
            _implementation(step.model, "_attn_implementation", "eager"),
            _implementation(step.model, "_experts_implementation", "grouped_mm"),
        ):
            yield


def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(_NAME, attend)
    try:
        from transformers.integrations.moe import ExpertsInterface
    except ImportError:  # transformers before 5
        return
    ExpertsInterface.register(_NAME, multiply_by_experts)


@contextmanager
def _implementation(model: "PreTrainedModel", attribute: str, replaced: str) -> Iterator[None]:
    """Context in which configs of *model* whose *attribute* is *replaced* name the registered function."""
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    before = [
        (config, value)
        for config in configs.values()
        if isinstance(value := getattr(config, attribute, None), str)
    ]
    for config, value in before:
        if value == replaced:
            setattr(config, attribute, _NAME)
    try:
        yield
    finally:
        # In this order: a config sets those inside it too.
        for config, value in before:
            setattr(config, attribute, value)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """
    An attention function of transformers' interface.

    Args:
        module: The attention layer.

        query: ``[batch, heads, width, key_dim]``.

        key: ``[batch, groups, slots, key_dim]``.

        value: ``[batch, groups, slots, value_dim]``.

        attention_mask: Added to the scores, ``[batch, 1 or heads, width, slots]``.

        scaling: Factor of the scores.

        softcap: Cap of the scores; None: none.

        s_aux: A sink for each head.

        options: Others. With any that has a part in the scores, the model's own function computes them.

    Returns:
        ``[batch, width, heads, value_dim]``, and no weights.
    """
    dtypes = {tensor.dtype for tensor in (query, key, value, attention_mask) if tensor is not None}
    if (
        attention_mask is None
        or len(dtypes) > 1
        or any(options.get(name) is not None for name in _OTHER_SCORES)
    ):
        found: tuple[Tensor, Tensor | None] = _own_function(module)(
            module,
            query,
            key,
            value,
            attention_mask,
            scaling=scaling,
            softcap=softcap,
            s_aux=s_aux,
            **options,
        )
        return found
    batch, heads, width, dim = query.shape
    out = torch.ops.decodekit.attention(
        query.transpose(1, 2).contiguous(),
        key if has_rows(key) else key.contiguous(),
        value if has_rows(value) else value.contiguous(),
        attention_mask.expand(batch, heads, width, -1),
        s_aux if s_aux is None else s_aux.to(query.dtype),
        float(dim**-0.5 if scaling is None else scaling),
        float(softcap or 0),
    )
    return out, None


def _own_function(module: nn.Module) -> Any:
    """The function of single operations of the model that *module* is of."""
    return sys.modules[type(module).__module__].eager_attention_forward


def multiply_by_experts(
    module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """
    An experts function of transformers' interface.

    Args:
        module: The experts.

        hidden_states: ``[tokens, hidden]``.

        top_k_index: Experts of each token, ``[tokens, k]``.

        top_k_weights: Their weights, ``[tokens, k]``.

    Returns:
        ``[tokens, hidden]``.
    """
    experts: Any = module
    tokens, chosen = top_k_index.shape
    numbers = top_k_index.reshape(-1)
    x = hidden_states.repeat_interleave(chosen, dim=0)
    x = _product(experts, "gate_up_proj" if experts.has_gate else "up_proj", x, numbers, chosen)
    x = experts._apply_gate(x) if experts.has_gate else experts.act_fn(x)
    x = _product(experts, "down_proj", x, numbers, chosen)
    if getattr(experts, "has_post_expert_norm", False):
        x = experts.post_expert_norm(x)
    weighted = x * top_k_weights.reshape(-1, 1)
    return weighted.view(tokens, chosen, -1).sum(dim=1).to(hidden_states.dtype)


def _product(experts: Any, name: str, x: Tensor, numbers: Tensor, each: int) -> Tensor:
    weights: Tensor = getattr(experts, name)
    out: Tensor = torch.ops.decodekit.expert_gemm(
        x.to(weights.dtype).contiguous(), numbers, weights, experts.is_transposed, each
    )
    return out + getattr(experts, f"{name}_bias")[numbers] if experts.has_bias else out
