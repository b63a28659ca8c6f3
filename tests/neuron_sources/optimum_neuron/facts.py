"""What the adapter and the stand-in of optimum-neuron rely on."""

from ..checkouts import OPTIMUM_NEURON
from ..facts import Check, Fact, chooses, has, lacks, takes

_ROOT = "optimum/neuron/models/inference"


def _fact(file: str, function: str, says: str, check: Check) -> Fact:
    return Fact(OPTIMUM_NEURON, f"{_ROOT}/{file}", function, says, check)


_DECODER = "backend/modules/decoder/modeling_decoder.py"
_WRAPPERS = "backend/modules/decoder/decoder_wrappers.py"
_BUILDERS = "backend/modules/decoder/decoder_builders.py"
_MODEL, _CALLED = "NxDModelForCausalLM", "NxDDecoderWrapperForCausalLM"

FACTS = (
    _fact(
        _DECODER,
        f"{_MODEL}.forward",
        "the arguments",
        takes("input_ids", "position_ids", "seq_ids", "sampling_params"),
    ),
    _fact(
        _DECODER,
        f"{_MODEL}.prefill_chunk",
        "the arguments",
        takes("input_ids", "position_ids", "seq_ids", "sampling_params"),
    ),
    _fact(
        _DECODER,
        f"{_MODEL}.forward",
        "calls of several columns with a row at position 0 are prompts; one token never is",
        chooses(
            ("input_ids.shape[-1] > 1 and not position_ids.min().item()", "context_encoding_model"),
            ("input_ids.shape[-1] == self.neuron_config.speculation_length", "speculation_model"),
            (None, "token_generation_model"),
        ),
    ),
    _fact(
        _DECODER,
        f"{_MODEL}._create_chunked_prefill_config",
        "chunks have the rows of a prompt, and do not sample",
        has("cp_config.on_device_sampling", "neuron_config.ctx_batch_size"),
    ),
    _fact(
        _DECODER,
        "NxDDecoderModelForCausalLM._forward_from_embeddings",
        "tokens or logits come first, with output_logits gathered logits second",
        has("[res]", "[logits]", "_gather_along_dim(logits, partition_dim=2)"),
    ),
    _fact(
        _DECODER,
        "NxDDecoderModelForCausalLM._forward_from_embeddings",
        "context encoding scores the column of the highest position",
        has("torch.max(position_ids, dim=1, keepdim=True).indices"),
    ),
    _fact(
        _BUILDERS,
        "DecoderModelInstanceForCausalLM.get",
        "two outputs with output_logits, else one",
        has("1 if not self.neuron_config.output_logits else 2"),
    ),
    _fact(
        _BUILDERS,
        "NxDDecoderBuilderForCausalLM.input_generator",
        "sampling_params have a row for each row of the graph",
        has("torch.zeros((self.neuron_config.batch_size, sampling_params_len), dtype=torch.float32)"),
    ),
    _fact(
        _WRAPPERS,
        f"{_CALLED}.forward",
        "prompts are padded with the pad token and position 1",
        has(
            "self._pad_to_max_context_length(input_ids, self.config.pad_token_id)",
            "self._pad_to_max_context_length(position_ids, 1)",
        ),
    ),
    _fact(
        _WRAPPERS,
        f"{_CALLED}._pad_to_chunk_size",
        "chunks are padded with their last token at its position",
        has("last_input_id.expand(-1, pad_length)", "last_pos.expand(-1, pad_length)"),
    ),
    _fact(
        _WRAPPERS,
        f"{_CALLED}.convert_int64_to_int32",
        "int64 becomes int32",
        has("t.to(torch.int32) if t.dtype == torch.int64 else t"),
    ),
    _fact(
        "backend/config.py",
        "NxDNeuronConfig.__init__",
        "speculation excludes on-device sampling and chunks",
        chooses(("self.on_device_sampling", "IncompatibleConfigError")),
    ),
    _fact(
        "backend/config.py",
        "NxDNeuronConfig.ctx_batch_size",
        "one row a prompt under continuous batching, else all",
        has("1 if self.continuous_batching else self.batch_size"),
    ),
    _fact(
        "modeling_utils.py",
        "NeuronPreTrainedModel.get_neuron_config",
        "no argument for on-device sampling",
        lacks("on_device_sampling", "output_logits"),
    ),
)
