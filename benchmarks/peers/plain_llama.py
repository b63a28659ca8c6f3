"""
A minimal Llama decoding loop, the peer of a compiled decoder on a GPU.

After gpt-fast (PyTorch's blog, 2023, *Accelerating Generative AI with PyTorch II*), reimplemented: a static
cache written by position, a mask row by position, one compiled step with greedy sampling, and a loop that
never copies the token to the host.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu


class PlainLlama:
    """The weights of a Llama, laid out for decoding one token at a time."""

    def __init__(self, model: Any, batch_size: int, max_length: int):
        """Take the weights of *model* on their device; QKV and gate/up projections are concatenated."""
        config, weights = model.config, model.state_dict()
        self.heads, self.key_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim, self.eps = config.hidden_size // self.heads, config.rms_norm_eps
        self.table, self.head = weights["model.embed_tokens.weight"], weights["lm_head.weight"]
        self.norm = weights["model.norm.weight"]
        self.layers = [self._layer(weights, f"model.layers.{i}.") for i in range(config.num_hidden_layers)]
        device, dtype = self.table.device, self.table.dtype
        shape = (batch_size, self.key_heads, max_length, self.dim)
        self.cache = [[torch.zeros(shape, dtype=dtype, device=device) for _ in "kv"] for _ in self.layers]
        inverse = model.model.rotary_emb.inv_freq.float()
        angles = torch.outer(torch.arange(max_length, device=device).float(), inverse).repeat(1, 2)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.causal = torch.ones(max_length, max_length, dtype=torch.bool, device=device).tril()
        # Other than a module's buffers, tensors without a static address are copied at every step of a CUDA
        # graph, or prevent its capture where one is written.
        shared = [self.table, self.head, self.norm, self.cos, self.sin, self.causal]
        for tensor in [*shared, *(each for group in [*self.layers, *self.cache] for each in group)]:
            torch._dynamo.mark_static_address(tensor)

    @staticmethod
    def _layer(weights: dict[str, Tensor], prefix: str) -> list[Tensor]:
        def joined(*names: str) -> Tensor:
            return torch.cat([weights[f"{prefix}{name}.weight"] for name in names])

        return [
            joined("input_layernorm"),
            joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            joined("self_attn.o_proj"),
            joined("post_attention_layernorm"),
            joined("mlp.gate_proj", "mlp.up_proj"),
            joined("mlp.down_proj"),
        ]

    def step(self, ids: Tensor, position: Tensor) -> Tensor:
        """Greedy next tokens ``[batch, 1]`` after the tokens *ids* ``[batch, 1]`` at a *position* ``[1]``."""
        x, batch = embedding(ids, self.table), ids.shape[0]
        cos, sin, mask = self.cos[position], self.sin[position], self.causal[position]
        for weights, (keys, values) in zip(self.layers, self.cache, strict=True):
            before, qkv, out, after, gate_up, down = weights
            parts = linear(rms_norm(x, before.shape, before, self.eps), qkv)
            parts = parts.view(batch, 1, -1, self.dim).transpose(1, 2)
            query, key, value = torch.split(parts, [self.heads, self.key_heads, self.key_heads], dim=1)
            keys.index_copy_(2, position, self._rotated(key, cos, sin))
            values.index_copy_(2, position, value)
            attended = scaled_dot_product_attention(
                self._rotated(query, cos, sin),
                keys,
                values,
                attn_mask=mask,
                enable_gqa=self.heads != self.key_heads,
            )
            x = x + linear(attended.transpose(1, 2).reshape(batch, 1, -1), out)
            gate, up = linear(rms_norm(x, after.shape, after, self.eps), gate_up).chunk(2, dim=-1)
            x = x + linear(silu(gate) * up, down)
        logits = linear(rms_norm(x, self.norm.shape, self.norm, self.eps), self.head)
        return logits.argmax(dim=-1)

    @staticmethod
    def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin
