"""``python -m decodekit inspect``: memory, cores and speed of a model, before anything is compiled."""

import argparse
import json
from typing import Any

from ..artifacts.machine import instruction_sets
from ..artifacts.manifest import Manifest
from ..kv_cache.shapes import DEFAULT_WIDTHS, clip_widths, decoder_shape, default_max_length, neuron_widths
from ..kv_cache.spans import decoder_spans
from ..models.weights import weight_dtype
from ..program_facts import list_kernels
from ..serialization.saved_manifest import saved_manifest
from ..targets.cpu.kernel_description import instruction_words, saved_kernels
from .bandwidth import Bandwidth, largest_cache, measure_bandwidth, physical_memory
from .instances import GIB, Instance, instance_named
from .model_facts import facts_of_config
from .sizing import STORED_BITS, GuideEstimate, Sizing

_SHARED_HEADS = (
    "  some cores hold the same key/value head: NxD Inference does that, compile_decoder(tp_degree=) does not"
)
_WHOLE = "  weights in {} over several cores: NxD Inference has them, compile_decoder(tp_degree=) does not"


def inspect(options: argparse.Namespace) -> int:
    """Print the report for *options*."""
    instance = None if options.instance is None else instance_named(options.instance, options.lnc)
    if instance is None and (options.lnc is not None or options.tp_degree is not None):
        raise ValueError("--lnc and --tp-degree are about the cores of an instance: give --instance")
    sizing = sizing_of(options)
    if instance is None:
        report = _model(sizing) | _machine(sizing, measure_bandwidth(), physical_memory(), largest_cache())
    else:
        report = _model(sizing) | _instance(sizing, instance, options.tp_degree)
    report |= _saved(options.model)
    print(json.dumps(report, indent=2) if options.json else _text(report))
    return 0


def sizing_of(options: argparse.Namespace) -> Sizing:
    """
    The sizes of the decoder that *options* describe; what they leave out is a saved decoder's own.

    Raises:
        ValueError: The shape is invalid.
    """
    scratch = 0
    if (saved := saved_manifest(options.model)) is not None:
        options, scratch = _completed(options, saved[1]), max(saved[1].tree_widths, default=0)
    facts, model = facts_of_config(options.model, weight_dtype(options.dtype))
    length = default_max_length(model.config) if options.max_length is None else options.max_length
    widths = options.widths or (
        clip_widths(DEFAULT_WIDTHS, length) if options.instance is None else neuron_widths(length)
    )
    shape = decoder_shape(
        model.config,
        vocab_size=facts.geometry.vocab_size,
        batch_size=1 if options.batch_size is None else options.batch_size,
        max_length=length,
        widths=widths,
    )
    return Sizing(
        model=facts,
        shape=shape,
        spans=decoder_spans(options.spans, shape.max_length),
        storage=options.weights,
        scratch=scratch,
    )


def _completed(options: argparse.Namespace, saved: Manifest) -> argparse.Namespace:
    """*options* with the values of a *saved* decoder where they have none."""
    same_length = options.max_length in (None, saved.shape.max_length)
    own = {
        "batch_size": saved.shape.batch_size,
        "max_length": saved.shape.max_length,
        # Those of another length are the defaults of that.
        "widths": list(saved.shape.widths) if same_length else None,
        "spans": saved.spans if same_length else None,
        "dtype": saved.dtype,
        "weights": next(iter(saved.quantized.values()), None),
    }
    given = {name: value for name, value in vars(options).items() if value is not None}
    return argparse.Namespace(**{**vars(options), **own, **given})


def _model(sizing: Sizing) -> dict[str, Any]:
    facts, shape = sizing.model, sizing.shape
    return {
        "architecture": facts.architecture,
        "dtype": facts.dtype,
        "parameters": facts.parameters,
        "layers": facts.layers,
        "heads": facts.heads,
        "key_value_heads": max(layer.key_heads for layer in facts.geometry.layers),
        "experts": facts.experts,
        "active_experts": facts.active_experts,
        "weights": sizing.storage or facts.dtype,
        "batch_size": shape.batch_size,
        "max_length": shape.max_length,
        "widths": list(shape.widths),
        "spans": list(sizing.spans),
        "weight_bytes": sizing.weight_bytes,
        "cache_bytes": sizing.cache_bytes,
        "cache_bytes_per_position": sizing.position_bytes,
    }


def _saved(model: str) -> dict[str, Any]:
    """What is saved with *model*; nothing of one that is no saved decoder."""
    if (found := saved_manifest(model)) is None:
        return {}
    folder, saved = found
    # None of a repository whose programs are not downloaded yet.
    return {"saved": {"target": saved.target, "kernels": saved_kernels(folder)}}


def _instance(sizing: Sizing, instance: Instance, degree: int | None) -> dict[str, Any]:
    possible = sizing.degrees(instance)
    if degree is not None and degree not in possible:
        raise ValueError(
            f"'tp_degree' must be one of {possible}, which {instance.name} has and which divide "
            f"{sizing.model.heads} heads: got {degree}"
        )
    needed = sizing.cores_needed(instance)
    used = degree or needed or possible[-1]
    guide = GuideEstimate.of(sizing)
    return {
        "instance": {
            "name": instance.name,
            "chip": instance.chip,
            "chips": instance.chips,
            "cores": instance.cores,
            "memory_per_core": instance.memory,
            "bandwidth_per_core": instance.bandwidth,
        },
        "tp_degrees": list(possible),
        "compile_decoder_tp_degrees": [n for n in possible if _is_compiled(sizing, n)],
        "cores_needed": needed,
        "guide": {
            "weight_bytes": guide.weight_bytes,
            "cache_bytes": guide.cache_bytes,
            "cores_needed": guide.cores_needed(instance, possible),
        },
        "tp_degree": used,
        "bytes_per_core": sizing.core_bytes(used),
        "fits": sizing.fits(instance, used),
        "decoding": _decoding(sizing, instance.bandwidth, used),
    }


def _is_compiled(sizing: Sizing, degree: int) -> bool:
    """Whether ``compile_decoder(tp_degree=degree)`` takes such a model; NxD Inference may all the same."""
    return degree == 1 or (sizing.storage is None and sizing.model.tp_divisor % degree == 0)


def _machine(sizing: Sizing, bandwidth: Bandwidth, memory: int, cache: int) -> dict[str, Any]:
    return {
        "machine": {
            "memory": memory,
            "processor_cache": cache,
            "bandwidth": bandwidth.bytes_per_second,
            "method": bandwidth.method,
            "instruction_sets": instruction_words(instruction_sets()),
        },
        "fits": sizing.core_bytes() <= memory,
        "decoding": _decoding(sizing, bandwidth.bytes_per_second, 1),
    }


def _decoding(sizing: Sizing, bandwidth: float, degree: int) -> list[dict[str, Any]]:
    return [
        {
            "span": span,
            "bytes_per_token": sizing.step_bytes(span, degree) * degree / sizing.shape.batch_size,
            "tokens_per_second": sizing.tokens_per_second(bandwidth, span, degree),
        }
        for span in sizing.spans
    ]


def _text(report: dict[str, Any]) -> str:
    lines = [
        f"{report['architecture']}: {report['parameters']:,} parameters, {report['layers']} layers, "
        f"{report['heads']} heads, {report['key_value_heads']} of keys and values, {report['dtype']}",
        *([_experts(report)] if report["experts"] else []),
        f"weights {_gib(report['weight_bytes'])}: linear layers in {report['weights']}",
        f"cache   {_gib(report['cache_bytes'])}: {report['batch_size']} rows of {report['max_length']} "
        f"positions, {report['cache_bytes_per_position']:,} bytes each",
        f"widths  {_list(report['widths'])}",
        f"spans   {_list(report['spans'])}",
        *([_saved_line(report["saved"])] if "saved" in report else []),
        "",
        *(_instance_lines(report) if "instance" in report else _machine_lines(report)),
        "",
        "  span       bytes a token   tokens/s at most",
    ]
    lines += [
        f"{row['span']:6d}   {row['bytes_per_token']:17,.0f}   {_rate(row['tokens_per_second']):>16}"
        for row in report["decoding"]
    ]
    return "\n".join(lines)


def _saved_line(saved: dict[str, Any]) -> str:
    kernels = f", {list_kernels(saved['kernels'])}" if saved["kernels"] else ""
    return f"saved   programs for {saved['target']}{kernels}"


def _experts(report: dict[str, Any]) -> str:
    return f"experts {report['active_experts']} of {report['experts']} for a token"


def _instance_lines(report: dict[str, Any]) -> list[str]:
    instance, guide = report["instance"], report["guide"]
    needed = report["cores_needed"]
    fits = "fits" if report["fits"] else "does NOT fit"
    stored = report["weights"] in STORED_BITS
    return [
        f"{instance['name']}: {instance['chips']} {instance['chip']}, {instance['cores']} cores of "
        f"{_gib(instance['memory_per_core'])} and {instance['bandwidth_per_core'] / 1e9:.0f} GB/s; "
        f"tp_degree may be {_list(report['tp_degrees'])}",
        f"cores needed: {'more than it has' if needed is None else needed}",
        f"AWS's estimate, 12 · layers · width²: weights {_gib(guide['weight_bytes'])}, "
        f"cache {_gib(guide['cache_bytes'])}, cores {guide['cores_needed'] or 'more than it has'}",
        f"with tp_degree={report['tp_degree']}: {_gib(report['bytes_per_core'])} a core, {fits}",
        *([_SHARED_HEADS] if report["key_value_heads"] % report["tp_degree"] else []),
        *([_WHOLE.format(report["weights"])] if stored and report["tp_degree"] > 1 else []),
    ]


def _machine_lines(report: dict[str, Any]) -> list[str]:
    machine = report["machine"]
    fits = "fits" if report["fits"] else "does NOT fit"
    return [
        f"this machine: {_gib(machine['memory'])} of memory, {fits}",
        f"reads {machine['bandwidth'] / 1e9:.1f} GB/s: {machine['method']}",
        f"kernels of target 'cpu': {', '.join(machine['instruction_sets'])}",
        *([_cached(machine)] if _stays_in_cache(report) else []),
    ]


def _stays_in_cache(report: dict[str, Any]) -> bool:
    return bool(report["weight_bytes"] + report["cache_bytes"] <= report["machine"]["processor_cache"])


def _cached(machine: dict[str, Any]) -> str:
    return (
        f"  all of it fits into the processor's cache of {_gib(machine['processor_cache'])}, "
        "which is quicker: what follows is no limit then"
    )


def _gib(count: float) -> str:
    """Bytes as text in GiB or MiB."""
    return f"{count / GIB:.1f} GiB" if count >= GIB / 10 else f"{count / 2**20:.1f} MiB"


def _rate(count: float) -> str:
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
