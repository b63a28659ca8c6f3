"""What the adapter and the stand-in of transformers-neuronx rely on."""

from ..checkouts import TRANSFORMERS_NEURONX
from ..facts import Check, Fact, chooses, has, lacks, takes

_ROOT = "src/transformers_neuronx"


def _fact(file: str, function: str, says: str, check: Check) -> Fact:
    return Fact(TRANSFORMERS_NEURONX, f"{_ROOT}/{file}", function, says, check)


_MODEL, _BASE = "LlamaForSampling", "NeuronModelBase"
_INDICES = "layers/attention_utils.py"

FACTS = (
    _fact(
        "llama/model.py",
        f"{_MODEL}.forward",
        "the arguments",
        takes("input_ids", "cache_ids", "start_ids"),
    ),
    _fact(
        "llama/model.py",
        f"{_MODEL}.speculative_forward",
        "the arguments",
        takes("input_ids", "cache_ids", "start_ids", "speculation_length"),
    ),
    _fact(
        "llama/model.py",
        f"{_MODEL}.speculative_forward",
        "start_ids are 0 for all rows unless they are given",
        has("torch.zeros(batch_size, dtype=torch.int32)"),
    ),
    _fact(
        "llama/model.py",
        f"{_MODEL}.speculative_forward",
        "programs have the columns and rows as their key; logits are columns, vocabulary, rows",
        has(
            "self.decoder_lm_head_for_speculation[speculation_length, batch_size]",
            "logits[:self.config.vocab_size, -speculation_length:, :]",
            "logits.transpose(0, 1)",
        ),
    ),
    _fact(
        "base.py",
        f"{_BASE}.enable_speculative_decoder",
        "programs have the columns and rows as their key",
        has("self.decoder_lm_head_for_speculation[k, batch_size]"),
    ),
    _fact(
        "base.py",
        f"{_BASE}._forward",
        "one column is a token at any position, several are a prompt",
        chooses(("context_length > 1", "context"), (None, "decode")),
    ),
    _fact(
        "base.py",
        f"{_BASE}._prepare_for_par_ctx_rhs_padding",
        "with 2-D cache_ids the column of each row's highest one is scored, else one column for all",
        has(
            "cache_ids.max(dim=1).values",
            "torch.as_tensor([min(context_length - 1, estimate-1)], dtype=torch.int32)",
        ),
    ),
    _fact(
        "base.py",
        f"{_BASE}._prepare_for_continuous_batching",
        "a token's ids and cache_ids are scattered into tensors of the ids' dtype, 0 in other rows",
        has(
            "torch.zeros(batch_size, 1, dtype=input_ids.dtype)",
            "full_cache_ids.scatter_(dim=0, index=seq_ids_int64, src=cache_ids)",
        ),
    ),
    _fact(
        _INDICES,
        "update_indices_speculative",
        "with 2-D cache_ids a verification writes the rows of start_ids",
        has("hlo.broadcast(start_ids, cache_ids.sizes, [1])", "hlo.add(indices, start_ids_br)"),
    ),
    _fact(
        _INDICES,
        "update_indices_decode",
        "a token is written to the rows in order",
        lacks("start_ids"),
    ),
    _fact(
        "layers/transformer.py",
        "inputs",
        "cache_ids are 2-D where the configuration says so, else 1-D",
        has(
            "s32[position_sizes].Parameter(parameter_number=1)",
            "s32[n_active_tokens].Parameter(parameter_number=1)",
        ),
    ),
    _fact(
        "bucket.py",
        "find",
        "the smallest bucket that is as long as the prompt, or the largest",
        has("bisect.bisect_left(buckets, size, hi=len(buckets) - 1)"),
    ),
    _fact(
        "config.py",
        "NeuronConfig.use_2d_cache_ids",
        "cache_ids are 2-D with padding_side='right' and under continuous batching",
        has("self.lhs_aligned"),
    ),
)
