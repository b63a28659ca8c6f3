"""Conversion of a Llama to llama.cpp's names and order."""

import numpy

from decodekit.benchmarks.peers.write_gguf import gguf_name, interleaved, stored_type


def test_names() -> None:
    """Every matrix of a layer, and those outside the layers."""
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        "model.layers.12.self_attn.q_proj.weight": "blk.12.attn_q.weight",
        "model.layers.0.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
        "model.layers.7.mlp.down_proj.weight": "blk.7.ffn_down.weight",
    }

    assert names == {name: gguf_name(name) for name in names}


def test_rotating_neighbours_of_one_is_rotating_halves_of_the_other() -> None:
    """Query-key scores are unchanged for any rotation angles."""
    rng = numpy.random.default_rng(0)
    matrix, angles = rng.standard_normal((12, 5)), rng.standard_normal(3)
    x = rng.standard_normal(5)
    halves = (matrix @ x).reshape(2, 2, 3)
    turned = numpy.stack(
        [
            halves[:, 0] * numpy.cos(angles) - halves[:, 1] * numpy.sin(angles),
            halves[:, 0] * numpy.sin(angles) + halves[:, 1] * numpy.cos(angles),
        ],
        axis=1,
    )
    pairs = (interleaved(matrix, 2) @ x).reshape(2, 3, 2)
    found = numpy.stack(
        [
            pairs[..., 0] * numpy.cos(angles) - pairs[..., 1] * numpy.sin(angles),
            pairs[..., 0] * numpy.sin(angles) + pairs[..., 1] * numpy.cos(angles),
        ],
        axis=1,
    )

    assert numpy.allclose(turned, found)


def test_only_the_output_layer_of_four_bits_has_another_type() -> None:
    """As llama-quantize stores it: the embedding if that is tied, and where Q6_K cannot be."""
    embedding, head, wide = "model.embed_tokens.weight", "lm_head.weight", (49_152, 512)
    narrow, norm = (49_152, 576), "model.norm.weight"

    assert "Q8_0" == stored_type(embedding, narrow, "Q4_0", tied=True)
    assert "Q8_0" == stored_type(head, narrow, "Q4_0", tied=False)
    assert "Q4_0" == stored_type(embedding, narrow, "Q4_0", tied=False)
    assert "Q4_0" == stored_type(embedding, wide, "Q4_0", tied=True)
    assert "BF16" == stored_type(embedding, narrow, "BF16", tied=True)
    assert "F32" == stored_type(norm, (576,), "Q4_0", tied=True)
