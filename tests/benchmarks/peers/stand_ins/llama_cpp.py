"""
Of llama-cpp-python what a peer calls, over what the stand-in for gguf has written.

A Llama in numpy as llama.cpp computes it: neighbouring numbers of a head are rotated together. All
tokens are computed again at every call.
"""

import ctypes
import types

import numpy

__version__ = "stand-in"
llama_token = ctypes.c_int32
llama_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


def llama_log_set(callback, data):
    pass


def llama_backend_init():
    pass


def llama_print_system_info():
    return b"CPU : STAND_IN = 1 | "


def llama_model_default_params():
    return types.SimpleNamespace()


llama_context_default_params = llama_model_default_params


def llama_model_load_from_file(path, params):
    return dict(numpy.load(path.decode(), allow_pickle=False))


def llama_model_get_vocab(model):
    return model


def llama_vocab_n_tokens(vocab):
    return int(vocab["vocab_size"])


def llama_init_from_model(model, options):
    return types.SimpleNamespace(model=model, ids=[], logits=None)


def llama_get_memory(context):
    return context


def llama_memory_clear(memory, data):
    memory.ids.clear()


def llama_batch_get_one(tokens, count):
    return list(tokens)[:count]


def llama_decode(context, batch):
    context.ids += batch
    context.logits = numpy.ascontiguousarray(_logits(context.model, context.ids), dtype=numpy.float32)
    return 0


def llama_get_logits_ith(context, i):
    return context.logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def _logits(model, ids):
    x = model["token_embd.weight"][ids].astype(numpy.float64)
    for i in range(int(model["block_count"])):

        def weight(name, i=i):
            return model[f"blk.{i}.{name}.weight"].astype(numpy.float64)

        x = x + _attention(model, weight, _norm(model, x, weight("attn_norm")))
        y = _norm(model, x, weight("ffn_norm"))
        gate = y @ weight("ffn_gate").T
        x = x + (gate / (1 + numpy.exp(-gate)) * (y @ weight("ffn_up").T)) @ weight("ffn_down").T
    x = _norm(model, x[-1], model["output_norm.weight"])
    return model.get("output.weight", model["token_embd.weight"]) @ x


def _attention(model, weight, x):
    heads, groups = int(model["head_count"]), int(model["head_count_kv"])
    query = _rotated(model, _heads(x @ weight("attn_q").T, heads))
    key = _rotated(model, _heads(x @ weight("attn_k").T, groups)).repeat(heads // groups, axis=0)
    value = _heads(x @ weight("attn_v").T, groups).repeat(heads // groups, axis=0)
    scores = query @ key.swapaxes(1, 2) / numpy.sqrt(query.shape[-1])
    scores = numpy.where(numpy.tri(len(x), dtype=bool), scores, -numpy.inf)
    shares = numpy.exp(scores - scores.max(axis=-1, keepdims=True))
    attended = (shares / shares.sum(axis=-1, keepdims=True)) @ value
    return attended.swapaxes(0, 1).reshape(len(x), -1) @ weight("attn_output").T


def _heads(x, heads):
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)


def _rotated(model, x):
    dim = int(model["rope_dimension_count"])
    frequencies = float(model["rope_freq_base"]) ** (-numpy.arange(0, dim, 2) / dim)
    angles = numpy.arange(x.shape[1])[:, None] * frequencies
    even, odd = x[..., ::2], x[..., 1::2]
    turned = numpy.empty_like(x)
    turned[..., ::2] = even * numpy.cos(angles) - odd * numpy.sin(angles)
    turned[..., 1::2] = even * numpy.sin(angles) + odd * numpy.cos(angles)
    return turned


def _norm(model, x, weight):
    mean = (x**2).mean(axis=-1, keepdims=True)
    return x / numpy.sqrt(mean + float(model["layer_norm_rms_eps"])) * weight
