"""
Conversion of a Llama to a GGUF file: ``python -P write_gguf.py SPECIFICATION``.

Needs only numpy and gguf. The specification is a JSON object: ``weights``, a folder of ``NAME.npy``
in float32 under transformers' names; ``config``, numbers under transformers' names; ``type``, such as
``"Q8_0"``; ``file``. Prints a JSON object: ``read_bytes``, the bytes that a decode step reads, or
``absent``, the package that is missing.

llama.cpp rotates adjacent pairs of a head's dimensions, transformers a head's halves: the rows of queries
and keys are reordered as convert_hf_to_gguf.py of llama.cpp does it. Norms stay in float32, as there.
"""

import json
import sys
from pathlib import Path
from typing import Any

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OTHER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name: str) -> str:
    """
    llama.cpp's name of a weight of transformers' Llama.

    >>> gguf_name("model.layers.3.mlp.up_proj.weight"), gguf_name("lm_head.weight")
    ('blk.3.ffn_up.weight', 'output.weight')
    """
    stem = name.removesuffix(".weight")
    if stem in _OTHER:
        return f"{_OTHER[stem]}.weight"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_LAYER[part]}.weight"


def interleaved(matrix: Any, heads: int) -> Any:
    """
    The rows of each head in the order 0, half, 1, half + 1, ...

    >>> import numpy
    >>> interleaved(numpy.arange(8).reshape(8, 1), 2).ravel().tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    outputs, inputs = matrix.shape
    return matrix.reshape(heads, 2, outputs // heads // 2, inputs).swapaxes(1, 2).reshape(outputs, inputs)


def stored_type(name: str, shape: tuple[int, ...], kind: str, tied: bool) -> str:
    """
    The type of a weight in a file of type *kind*.

    llama-quantize keeps the output layer of a Q4_0 file in Q8_0 where the width is no multiple of 256, and
    else in Q6_K, which the package gguf does not write: there the layer has 4 bits as the others have.

    >>> stored_type("lm_head.weight", (49_152, 576), "Q4_0", tied=False)
    'Q8_0'

    Args:
        name: transformers' name.

        shape: Its own.

        kind: The type of the other matrices.

        tied: Whether the embedding is the output layer.
    """
    if len(shape) == 1:
        return "F32"
    is_output = name.removesuffix(".weight") == ("model.embed_tokens" if tied else "lm_head")
    return "Q8_0" if is_output and kind == "Q4_0" and shape[1] % 256 else kind


def write(specification: dict[str, Any]) -> dict[str, Any]:
    """Write the file; the bytes that a decode step reads."""
    import gguf
    import numpy

    config, kind = specification["config"], specification["type"]
    writer = gguf.GGUFWriter(specification["file"], "llama")
    writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[kind]])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    # Prompts are token ids.
    writer.add_tokenizer_model("no_vocab")

    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    files = sorted(Path(specification["weights"]).glob("*.npy"))
    tied = all(file.stem != "lm_head.weight" for file in files)
    read = 0
    for file in files:
        tensor = numpy.load(file)
        part = file.stem.removesuffix(".weight").rpartition(".")[2]
        if part in heads:
            tensor = interleaved(tensor, heads[part])
        stored = gguf.GGMLQuantizationType[stored_type(file.stem, tensor.shape, kind, tied)]
        data = gguf.quants.quantize(numpy.ascontiguousarray(tensor), stored)
        writer.add_tensor(gguf_name(file.stem), data, raw_dtype=stored)
        # An embedding that is not also the head is read one row a token.
        looked_up = part == "embed_tokens" and not tied
        read += data.nbytes // len(tensor) if looked_up else data.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"read_bytes": read}


_FILE_TYPES = {
    "F32": "ALL_F32",
    "F16": "MOSTLY_F16",
    "BF16": "MOSTLY_BF16",
    "Q8_0": "MOSTLY_Q8_0",
    "Q4_0": "MOSTLY_Q4_0",
}


if __name__ == "__main__":
    try:
        print(json.dumps(write(json.loads(sys.argv[1]))))
    except ModuleNotFoundError as error:
        print(json.dumps({"absent": f"{error.name} is not installed"}))
