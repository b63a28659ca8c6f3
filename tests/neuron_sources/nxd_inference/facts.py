"""What the adapter and the stand-in of NxD Inference rely on."""

from ..checkouts import NXDI
from ..facts import Check, Fact, chooses, has

_ROOT = "src/neuronx_distributed_inference"


def _fact(file: str, function: str, says: str, check: Check) -> Fact:
    return Fact(NXDI, f"{_ROOT}/{file}", function, says, check)


_BASE, _WRAPPER = "models/model_base.py", "models/model_wrapper.py"
_CACHE = "modules/kvcache/kv_cache_manager.py"
_MODEL, _CALLED = "NeuronBaseForCausalLM", "ModelWrapper"

FACTS = (
    _fact(
        _BASE,
        f"{_MODEL}.__init__",
        "a model has a program for speculation, or for medusa, or for one token",
        chooses(
            ("self.neuron_config.speculation_length > 0", "enable_speculation"),
            ("self.neuron_config.medusa_speculation_length > 0", "enable_medusa_speculation"),
            (None, "enable_token_generation"),
        ),
    ),
    _fact(
        _BASE,
        f"{_MODEL}._is_prefill",
        "a call with a row at position 0 is a prompt",
        has("position_ids.min().item() == 0"),
    ),
    _fact(
        _BASE,
        f"{_MODEL}._get_model_outputs",
        "prompts are encoded, calls as wide as speculation_length verified, others generate one token",
        chooses(
            ("self._is_prefill(position_ids)", "context_encoding_model"),
            ("self.neuron_config.enable_fused_speculation", "fused_spec_model"),
            ("input_ids.shape[-1] == self.neuron_config.speculation_length", "speculation_model"),
            (
                "input_ids.shape[-1] == self.neuron_config.medusa_speculation_length",
                "medusa_speculation_model",
            ),
            (None, "token_generation_model"),
        ),
    ),
    _fact(
        _BASE,
        f"{_MODEL}.__init__",
        "the default sampling_params have a row for each of batch_size",
        has(
            "prepare_sampling_params(batch_size=self.neuron_config.batch_size, "
            "top_k=[1], top_p=[1.0], temperature=[1.0])"
        ),
    ),
    _fact(
        _BASE,
        f"{_MODEL}.preprocess_inputs",
        "they are passed to the graph whenever a call has none",
        has("self.default_sampling_params if sampling_params is None else sampling_params"),
    ),
    _fact(
        _BASE,
        f"{_MODEL}.enable_context_encoding",
        "context encoding is compiled for ctx_batch_size rows",
        has("self.neuron_config.ctx_batch_size"),
    ),
    _fact(
        _BASE,
        f"{_MODEL}.enable_token_generation",
        "token generation is compiled for tkg_batch_size rows",
        has("self.neuron_config.tkg_batch_size"),
    ),
    _fact(
        _BASE,
        f"{_MODEL}.enable_speculation",
        "speculation is compiled for spec_batch_size rows of speculation_length columns",
        has("self.neuron_config.spec_batch_size", "self.neuron_config.speculation_length"),
    ),
    _fact(
        _BASE,
        f"{_MODEL}._get_constructed_outputs",
        "tokens and logits are the first two outputs of a model that samples and returns logits",
        has(
            "outputs[:2]",
            "self.on_device_sampling and self.neuron_config.output_logits and not "
            "(self.neuron_config.enable_fused_speculation or self.neuron_config.is_medusa)",
        ),
    ),
    _fact(
        _BASE,
        f"{_MODEL}._construct_output",
        "a model that samples returns no logits otherwise",
        has("None if self.on_device_sampling else logits_or_next_tokens"),
    ),
    _fact(
        _BASE,
        "NeuronBaseModel._is_context_encoding",
        "a graph of speculation_length columns scores each of them, as a bucket of that size would",
        has("input_ids.shape[-1] > 1 and input_ids.shape[-1] != self.speculation_length"),
    ),
    _fact(
        _BASE,
        "NeuronBaseModel.forward",
        "context encoding scores the column of the highest position",
        has("torch.max(position_ids, dim=1, keepdim=True).indices"),
    ),
    _fact(
        _WRAPPER,
        f"{_CALLED}.pad_inputs",
        "prompts are padded with the pad token, mask 0 and position 1; else the mask alone, with 0",
        has(
            "[self.config.pad_token_id, 0, 1]",
            'F.pad(attention_mask, (0, pad_len), "constant", 0)',
        ),
    ),
    _fact(
        _WRAPPER,
        f"{_CALLED}.get_target_bucket",
        "the mask's length selects the bucket, with room for the columns of a verification",
        has(
            "args[1].shape[1]",
            "self.neuron_config.speculation_length "
            "if self.tag in (FUSED_SPECULATION_MODEL_TAG, SPECULATION_MODEL_TAG) else 0",
        ),
    ),
    _fact(
        _WRAPPER,
        f"{_CALLED}._get_seq_bucket",
        "a bucket must be longer than what it holds, except the largest",
        has(
            'strategy == "first_fit" and required_len < bucket',
            "required_len == largest or self.neuron_config.allow_input_truncation",
        ),
    ),
    _fact(
        _WRAPPER,
        f"{_CALLED}.convert_int64_to_int32",
        "int64 becomes int32",
        has("t.to(torch.int32)", "t.dtype == torch.int64"),
    ),
    _fact(
        _WRAPPER,
        f"{_CALLED}._forward_with_pad",
        "missing rows repeat the first, and all are sorted by seq_ids",
        has(
            "'repeat_first_batchline'",
            "torch.sort(padded_seq_ids) if reorder_seq_ids else (padded_seq_ids, None)",
        ),
    ),
    _fact(
        _WRAPPER,
        f"{_CALLED}.input_generator",
        "sampling_params have a row for each row of the graph",
        has("torch.ones((batch_size, sampling_params_len), dtype=torch.float32)"),
    ),
    _fact(
        _CACHE,
        "KVCacheManager._get_index_to_update_new_position",
        "a sliding window is a ring of window - 1 slots, an attention chunk one of its size",
        has("position_ids % (self.sliding_window - 1)", "position_ids % cache_len"),
    ),
    _fact(
        "models/config.py",
        "NeuronConfig.__init__",
        "spec_batch_size is batch_size unless it is set",
        has('kwargs.pop("spec_batch_size", self.batch_size)'),
    ),
)
