"""
Names are looked for in foreign objects alone.

What a part of ours may offer is declared in :mod:`decodekit.decoding.optional_protocols`, so that
a misspelt name is a mistake and not silently nothing. ``getattr``, ``hasattr``, ``vars``,
``__dict__`` and ``except AttributeError`` are for objects of other packages, listed here.
"""

import ast
import pathlib
from collections.abc import Iterator

import decodekit

ROOT = pathlib.Path(decodekit.__file__).parent
ROOMS = ("benchmarks", "decoding", "neuron_backend", "pretrained", "processors", "speculation", "streaming")

FOREIGN = {
    "decoding/text/tokenizer.py": {
        "added_tokens_decoder",
        "all_special_tokens",
    },  # whatever is given for a tokenizer
    # What some systems do not have
    "decoding/after_fork.py": {"register_at_fork"},
    "decoding/user_cache.py": {"geteuid"},
    "neuron_backend/large_pages.py": {"MADV_HUGEPAGE"},
    "neuron_backend/serialization/replaced_folder.py": {"AttributeError"},
    # Models, configs and caches of transformers
    # AttributeError: files of another form than transformers expects
    "neuron_backend/models/attention_temperature.py": {"attn_temperature_tuning", "use_rope"},
    "benchmarks/forward/gpu_steps.py": {"cumulative_length"},
    "neuron_backend/models/cache_argument.py": {"cache", "past_key_values"},
    "neuron_backend/models/gguf_file.py": {"AttributeError"},
    "neuron_backend/models/gguf_settings.py": {
        "layer_types",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "rope_type",
        "sliding_window",
        "validate",
    },
    "neuron_backend/models/gguf_tokenizer.py": {"add_bos_token"},
    "neuron_backend/models/without_bars.py": {"tqdm"},
    "neuron_backend/models/rope_scaling.py": {
        "original_max_position_embeddings",
        "rope_parameters",
        "rope_scaling",
        "rope_type",
    },
    "neuron_backend/models/early_exit.py": {"config"},
    "neuron_backend/kv_cache/geometry.py": {"layers", "logits"},
    "neuron_backend/lowering/step_graphs.py": {"_experts_implementation", "set_experts_implementation"},
    "neuron_backend/kv_cache/masks.py": {
        "attention_chunk_size",
        "attention_layers",
        "layer_types",
        "sliding_window",
    },
    "neuron_backend/tensor_parallel/parallel_plan.py": {"tp_plan"},
    "neuron_backend/kv_cache/shapes.py": {"max_position_embeddings", "max_target_positions"},
    "neuron_backend/sizing/model_facts.py": {"set_experts_implementation", "text_config"},
    "neuron_backend/targets/neuron/functional_step.py": {"set_experts_implementation"},
    "neuron_backend/targets/cpu/traced_kernels.py": {"config", "has_post_expert_norm"},
    "neuron_backend/models/weights.py": {
        "output_router_logits",
        "set_experts_implementation",
        "tie_word_embeddings",
        "weight",
    },
    "neuron_backend/adapters/settings.py": {"get_text_config", "use_sliding_window"},
    "neuron_backend/adapters/transformers_neuronx.py": {"neuron_config"},
    "processors/interop/generation_fields.py": {"greenlist_ratio", "ngram_len"},
    # Tokenizers
    "decoding/text/clean_up.py": {"backend_tokenizer", "clean_up_tokenization_spaces", "model"},
    "decoding/chat.py": {"chat_template"},
    "decoding/prompts.py": {"bos_token_id"},
    "decoding/engine/end_tokens.py": {"eos_token_id"},
    "decoding/engine/start_token.py": {"bos_token_id"},
    "decoding/text/per_tokenizer.py": {"backend_tokenizer", "decoder"},
    "decoding/text/token_bytes.py": {"added_tokens_decoder", "get_vocab"},
    "processors/grammar/llguidance.py": {"backend_tokenizer"},
    "streaming/transformers_streamer.py": {"eos_token_id"},
    # Streams and iterators; AttributeError: a stream without a file number
    "decoding/results/streamers.py": {"close"},
    "streaming/batch_display.py": {"AttributeError", "isatty"},
    "streaming/encodable.py": {"encoding", "errors"},
    "streaming/json_lines.py": {"write"},
    "streaming/sse.py": {"aclose", "close"},
    # Arrays, modules and graphs of numpy and torch; AWS's packages
    "decoding/thread_number.py": {"AttributeError"},  # torch without OpenMP
    "decoding/validation.py": {"tolist"},
    "neuron_backend/lint/graph_rules.py": {"overloadpacket", "tags"},
    "neuron_backend/lowering/export.py": {"__name__", "overloadpacket", "tags"},
    "neuron_backend/lowering/narrow_integers.py": {"_schema"},
    "neuron_backend/tensor_parallel/process_group.py": {"_timeout", "options"},
    "neuron_backend/parity/drift.py": {"tolist"},
    "neuron_backend/targets/neuron/detect.py": {
        "ModelBuilder",
        "device_count",
        "get_fallback_ops",
        "is_initialized",
        "neuron",
        "trace",
    },
    "neuron_backend/models/fused_projections.py": {"namespace"},
    "neuron_backend/targets/neuron/native_target.py": {"get_fallback_ops"},
    "neuron_backend/targets/device_tensors.py": {"device"},
    # Python's own
    "benchmarks/measuring/machine.py": {"sched_getaffinity"},  # not on every system
    # The name of a function, or of whatever else can be called.
    "decoding/sampling_placement.py": {"__name__"},
    # All that a processor of a user's keeps.
    "neuron_backend/on_device_sampling/chain_digest.py": {"__dict__"},
}
"""By file, the names that it looks for in objects of other packages."""

COMPUTED = {
    # Options of a command line, by name
    "benchmarks/serving/requests.py": {"getattr(options, name)"},
    "benchmarks/speculation/acceptance.py": {"getattr(options, name)"},
    "benchmarks/speculation/speed.py": {"getattr(options, name)"},
    "benchmarks/measuring/compilations.py": {"getattr(module, name)"},  # functions of torch, to be wrapped
    # Models of transformers and their configs.
    "benchmarks/models/enlarge.py": {
        "getattr(large, size)",
        "getattr(new.mlp, name)",
        "getattr(old.mlp, name)",
        "getattr(small, size)",
    },
    # A setting that only some versions of transformers' tokenizers have.
    "decoding/text/clean_up.py": {"getattr(tokenizer, insists, True)"},
    # PEP 562: what a module of ours exports, by the name that was asked for.
    "decoding/lazy_names.py": {
        "getattr(import_module(homes[name], package), name)",
        "vars(sys.modules[package])",
    },
    # Whether a tokenizer's class decodes as the library's own does.
    "decoding/text/tokenizer.py": {"getattr(Fast, name)", "getattr(family, name, None)"},
    "decoding/text/tokenizer_check.py": {"getattr(value, name, None)"},  # whatever is given for a tokenizer
    "neuron_backend/models/gguf_settings.py": {"getattr(config, option, None)", "hasattr(config, bound)"},
    "neuron_backend/models/rope_scaling.py": {"getattr(module, f'{prefix}original_inv_freq')"},
    "neuron_backend/models/early_exit.py": {"getattr(owner, name)", "vars(config)"},  # models and configs
    "neuron_backend/lowering/narrow_integers.py": {"getattr(owner, name)"},  # a buffer of a module
    "neuron_backend/tensor_parallel/parallel_plan.py": {"getattr(config, name, None)"},
    "neuron_backend/sizing/model_facts.py": {"getattr(config, name, None)"},
    # Settings of transformers' configs, and weights and biases of its experts.
    "neuron_backend/targets/cpu/traced_kernels.py": {
        "getattr(config, attribute, None)",
        "getattr(experts, f'{name}_bias')",
        "getattr(experts, name)",
    },
    "neuron_backend/targets/device_read.py": {"getattr(torch, device.type)"},  # torch.neuron, torch.cuda
    "neuron_backend/targets/device_tensors.py": {
        "getattr(owner, name)",
        "getattr(torch, device.type, None)",
    },
    "neuron_backend/targets/neuron/traced_target.py": {
        "hasattr(_module('neuronx_distributed'), name)",
        "hasattr(_module('torch_neuronx'), name)",
    },
    "neuron_backend/adapters/settings.py": {"getattr(config, name, None)", "getattr(config, name, default)"},
    # Whatever a generation config of any version of transformers holds.
    "processors/interop/generation_config.py": {"vars(config)", "vars(type(config)())"},
    "decoding/interop/refused_options.py": {"vars(generation_config)"},
    # Its start, end and padding tokens, and a tokenizer's.
    "decoding/interop/transformers_model.py": {"getattr(tokenizer, name, None)", "vars(config)"},
    "pretrained/custom_generate.py": {"vars(config)"},
    "pretrained/from_files.py": {"vars(config)"},
    "pretrained/draft_fields.py": {"vars(config)"},
    # And what a processor of transformers holds.
    "pretrained/generate_arguments.py": {"vars(one)", "vars(other)", "vars(own)"},
    # The flags of a command.
    "pretrained/command_decoders.py": {"vars(options)"},
    "neuron_backend/sizing/inspect_command.py": {"vars(options)"},
    "pretrained/generate_options.py": {"vars(options)"},
    # The fields of its watermarking configs.
    "processors/interop/generation_fields.py": {"getattr(value, name)"},
}
"""By file, the calls that look for names that are computed, or for all there are."""


def looked_for(tree: ast.Module) -> Iterator[tuple[bool, str]]:
    """Every name that is looked for, and every call whose names are computed: whether it is one, and what."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.args[1] if len(node.args) > 1 else None
            if node.func.id in ("getattr", "hasattr", "vars"):
                if isinstance(name, ast.Constant):
                    yield False, str(name.value)
                else:
                    yield True, ast.unparse(node)
        elif isinstance(node, ast.Attribute) and node.attr in ("__dict__", "getattr_static"):
            yield False, node.attr
        elif isinstance(node, ast.ExceptHandler) and "AttributeError" in ast.unparse(node.type or ast.Pass()):
            yield False, "AttributeError"


def test_names_are_looked_for_in_foreign_objects_alone() -> None:
    """What the sources look for is what is listed above, file by file; the lists hold nothing else."""
    found: tuple[dict[str, set[str]], dict[str, set[str]]] = ({}, {})
    for path in [*ROOT.glob("*.py"), *(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))]:
        for computed, what in looked_for(ast.parse(path.read_text())):
            found[computed].setdefault(path.relative_to(ROOT).as_posix(), set()).add(what)
    for listed, seen in zip((FOREIGN, COMPUTED), found, strict=True):
        assert listed == seen
