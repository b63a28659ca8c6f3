"""Compilation of a model to a decoder: validation of the options, and the steps in order."""

from collections.abc import Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..decoding.forward_checks import check_row_widths
from ..decoding.protocols import Processor, Sampler
from ..decoding.validation import as_tuple, is_whole
from .kv_cache.shapes import (
    decoder_shape,
    decoder_tree_widths,
    default_max_length,
    default_row_widths,
    widths_within,
)
from .kv_cache.spans import decoder_spans
from .models.gguf_file import is_gguf, unpacked_size
from .models.model_source import check_model, config_of
from .models.rope_scaling import check_config_rope
from .models.unsupported import UnsupportedArchitecture
from .models.weights import weight_dtype
from .on_device_sampling.pipeline_validation import check_rows, validate_pipeline
from .progress import stage
from .progress_option import ProgressOption, progress_of
from .targets.registry import resolve
from .targets.target import LimitsWrites, Target, serves_rows, serves_rows_unasked
from .threads import check_threads

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from .compiled_decoder import CompiledDecoder


def compile_decoder(
    model: "PreTrainedModel | str | PathLike[str]",
    *,
    batch_size: int = 1,
    max_length: int | None = None,
    widths: Sequence[int] | None = None,
    scored_width: int | None = None,
    tree_widths: Sequence[int] = (),
    spans: Sequence[int] | None = None,
    row_widths: Sequence[int] | None = None,
    copies_rows: bool | None = None,
    processors: Processor | None = None,
    sampler: Sampler | None = None,
    target: str | Target = "auto",
    dtype: torch.dtype | str | None = None,
    weights: str | None = None,
    threads: int | None = None,
    tp_degree: int = 1,
    progress: ProgressOption = None,
) -> "CompiledDecoder":
    """
    Compile *model* for fixed shapes. Nothing is compiled later, during a forward.

    Args:
        model: A Hugging Face causal LM, or the path or hub id of one; or the path of a GGUF file, whose
            weights are unpacked (extra ``gguf``). It is not modified. Its weights are shared, unless *dtype*
            differs from theirs, *weights* or *tp_degree* is given, or they lie in a memory-mapped file.
            Programs for the CPU use fused QKV and gate-up weights, which are copies if you keep *model*.

        batch_size: Rows of every forward.

        max_length: Positions per row. None: 2048, or the model's own maximum if smaller.

        widths: Columns of the forwards (token buckets), ascending, at most *max_length*; one program each.
            None: 1, 5 and 128; on Neuron 1, 5 and powers of two from 128 to *max_length*, or 1, 5 and 64
            where a single program serves all of them; each limited to *max_length*, and on
            ``"neuron-native"`` to forwards that write at most 2**24 keys of a layer.

        scored_width: Forwards up to this width score every column, wider ones the last. None: the largest
            width up to 32, else the smallest.

        tree_widths: Columns of the forwards over trees, ascending, at most *max_length*; one program
            each. None by default; see :meth:`CompiledDecoder.forward_tree`.

        spans: Numbers of leading positions that a forward may attend to (KV buckets), ascending, the last
            *max_length*. A forward uses the smallest that holds all of its tokens. None: powers of two
            from 128.

        row_widths: Widths of which there is also a program of one row, ascending: a prompt is then fed
            without computing the rows that decode beside it. None: with several rows, the widths beyond
            *scored_width*; on Neuron, where each program takes minutes to compile, none.

        copies_rows: Whether a row of the cache can become a copy of another, so that prompts with a common
            beginning feed it once, as do several samples of one prompt, and beams feed new tokens only.
            None: True; on Neuron, where it takes one program more for each span, False.

        processors: The :class:`~decodekit.decoding.Generator`'s processors, to be compiled into every
            forward that scores all of its columns, together with *sampler*. Tokens are then sampled on the
            device and the logits stay there. If a part has no device variant, sampling remains on the host;
            :meth:`CompiledDecoder.explain` says what runs where. The decoder can still be used with any
            other chain, which then runs on the host.

        sampler: The generator's sampler. None: greedy if there are *processors*; else no sampling is
            compiled into the forwards.

        target: ``"cpu"`` compiles with Inductor, which requires a C++ compiler; ``"eager"``
            compiles nothing; ``"neuron"`` compiles for the installed Neuron package,
            ``"neuron-native"`` or ``"neuron-traced"``; ``"cuda"`` records CUDA graphs on a GPU;
            ``"auto"`` is ``"neuron"`` if there is a device, else ``"cuda"`` if there is a GPU, else
            ``"cpu"`` if there is a compiler, else ``"eager"``, with a logged warning that says which
            packages bring a compiler; the decoder's ``target`` is the result. Or a
            :class:`~.targets.target.Target` with its own options.

        dtype: Dtype of weights and cache: float32, bfloat16, float16 or float64, or its name. None:
            the model's own, or that of a GGUF file's matrices, float32 if they are quantised.

        weights: ``"int8"``, ``"int4"`` or ``"float8"`` quantises linear layers; activations keep *dtype*.
            None: not quantised. ``decoder.weights`` lists the format of each layer, and
            :func:`~.parity.drift.drift` measures the loss.

        threads: Threads of a forward. None: torch's setting; 1 is fastest for a small draft model. Can be
            changed later, as ``decoder.threads``.

        tp_degree: Number of processes that share the model, each with a shard of its weights and of the
            cache. More than 1 requires a program started by ``torchrun --nproc-per-node TP_DEGREE``; all
            processes must make the same calls (:mod:`~.tensor_parallel.ranks`). For ``"neuron-traced"``,
            the number of cores, which one process drives (:mod:`~.tensor_parallel.cores`).

        progress: What is told each stage as it begins and ends: a callable that takes a
            :class:`~.progress.Stage`. None: a line on stderr, if that is a terminal; False: nothing.
            Stages are logged under ``decodekit`` too, with the seconds that they took.

    Raises:
        UnsupportedArchitecture: The logits differ from *model*'s, or its state cannot be rewound.

        ValueError: An argument is invalid.

        TypeError: An argument is of the wrong type.

        FileNotFoundError: *model* is neither a folder with a model, nor a GGUF file, nor on the hub.

        LostRank: Another process has failed or ended.
    """
    # Imported here: programs that import this function may only load a decoder.
    from .compiled_decoder import CompiledDecoder
    from .quantization.quantized import check_format
    from .serialization.saved_model import load_model
    from .targets.neuron.weight_formats import check_weight_formats
    from .tensor_parallel.cores import ranks_or_cores
    from .tensor_parallel.lost_ranks import fail_together, report_lost_ranks
    from .tensor_parallel.sharded_model import load_shard

    told = progress_of(progress)
    compiler = resolve(target)
    check_threads(threads)
    check_model(model)
    validate_pipeline(processors, sampler)
    check_rows(processors, batch_size)
    if compiler.name.startswith("neuron"):
        check_weight_formats((weights,), compiler.name)
    check_format(weights)
    if is_whole(tp_degree) and tp_degree > 1 and weights is not None:
        raise ValueError(f"'weights' must be None with tp_degree > 1: got {weights!r}")
    widths = None if widths is None else as_tuple("widths", widths)
    tree_widths = as_tuple("tree_widths", tree_widths)
    spans = None if spans is None else as_tuple("spans", spans)
    row_widths = None if row_widths is None else as_tuple("row_widths", row_widths)
    if copies_rows is not None and not isinstance(copies_rows, bool):
        raise TypeError(f"'copies_rows' must be True, False or None: got {copies_rows!r}")
    if (row_widths or copies_rows) and batch_size == 1:
        raise ValueError(
            "'row_widths' and 'copies_rows' are for several rows, 'batch_size' >= 2: got 1 with "
            f"{row_widths} and {copies_rows}"
        )
    if (row_widths or copies_rows) and not serves_rows(compiler):
        raise ValueError(
            f"'row_widths' must be () and 'copies_rows' False for target {compiler.name!r}, which has no "
            f"programs of single rows: got {row_widths} and {copies_rows}"
        )
    compiler.require()
    ranks, cores = ranks_or_cores(compiler, tp_degree)
    with report_lost_ranks(ranks):
        if ranks is not None:
            shape = (batch_size, max_length, widths, scored_width, tree_widths, spans)
            rows = (row_widths, copies_rows)
            ranks.check_call(shape, rows, compiler.name, dtype, processors is None, sampler is None)
        with fail_together(ranks):
            config = config_of(model)
        if config is not None:
            check_shapes(
                config,
                compiler,
                batch_size=batch_size,
                max_length=max_length,
                widths=widths,
                scored_width=scored_width,
                tree_widths=tree_widths,
                spans=spans,
                row_widths=row_widths or (),
            )
        with stage(told, f"loading {_described(model, weight_dtype(dtype))}"):
            loaded = load_shard(model, partial(load_model, dtype=weight_dtype(dtype)), ranks)
        decoder = CompiledDecoder(
            loaded,
            batch_size=batch_size,
            max_length=max_length,
            widths=_widths_of(compiler, loaded, batch_size, max_length) if widths is None else widths,
            scored_width=scored_width,
            tree_widths=tree_widths,
            spans=spans,
            dtype=dtype,
            weights=weights,
            progress=told,
        )
        decoder.offer_rows(_row_widths(compiler, decoder, row_widths))
        decoder.threads, decoder.cores = threads, cores
        if isinstance(model, str | PathLike):
            # Loaded here: no other model has its weights.
            # Read later, perhaps from another folder.
            decoder.source = Path(model).absolute() if Path(model).exists() else model
            decoder.borrowed = frozenset()
        # What was fused or quantised since would be in memory twice while programs are compiled.
        del loaded
        decoder.compile(compiler, processors, sampler, copies_rows)
    return decoder


def check_shapes(
    config: "PretrainedConfig",
    target: Target,
    *,
    batch_size: int = 1,
    max_length: int | None = None,
    widths: Sequence[int] | None = None,
    scored_width: int | None = None,
    tree_widths: Sequence[int] = (),
    spans: Sequence[int] | None = None,
    row_widths: Sequence[int] = (),
) -> None:
    """
    Check shapes as :func:`compile_decoder` takes them, before a model is loaded, which may take minutes.

    Args:
        config: The model's.

        target: The target, which has default widths.

        batch_size: As there.

        max_length: As there.

        widths: As there.

        scored_width: As there.

        tree_widths: As there.

        spans: As there.

        row_widths: As there; empty for the default.

    Raises:
        TypeError, ValueError: As there.

        UnsupportedArchitecture: The config has layers without a mask here, or frequencies that change within
            the positions.
    """
    # Imported here, as in compile_decoder.
    from .kv_cache.masks import MaskPlan

    shape = decoder_shape(
        config,
        vocab_size=1,
        batch_size=batch_size,
        max_length=max_length,
        widths=_widths(target, config, max_length) if widths is None else widths,
        scored_width=scored_width,
    )
    # Not named in the config of a model that was built, and is there.
    if config.architectures:
        architecture = config.architectures[0]
        MaskPlan.of_config(config, architecture)
        check_config_rope(config, architecture, shape.max_length)
    decoder_tree_widths(tree_widths, shape.max_length)
    decoder_spans(spans, shape.max_length)
    if row_widths:
        check_row_widths(row_widths, shape.widths)


def _described(model: "PreTrainedModel | str | PathLike[str]", dtype: torch.dtype | None) -> str:
    """The name of a model that is loaded; of a GGUF file, often quantised, with the size of its weights."""
    if not isinstance(model, str | PathLike):
        return type(model).__name__
    if is_gguf(model):
        return f"{model}, {unpacked_size(model, dtype)}"
    return str(model)


def _row_widths(target: Target, decoder: "CompiledDecoder", widths: Sequence[int] | None) -> tuple[int, ...]:
    if widths is not None:
        return tuple(widths)
    return default_row_widths(decoder.shape) if serves_rows_unasked(target) else ()


def _widths_of(
    target: Target, model: "PreTrainedModel", batch_size: int, max_length: int | None
) -> tuple[int, ...]:
    """Default widths of a decoder over *model*, within the target's limit."""
    widths = _widths(target, model.config, max_length)
    # The decoder rejects an invalid batch size.
    if not isinstance(target, LimitsWrites) or not is_whole(batch_size) or batch_size < 1:
        return widths
    from .kv_cache.geometry import Geometry

    try:
        geometry = Geometry.of(model)
    except UnsupportedArchitecture:
        # The decoder refuses the model, or its copy runs where this one in training mode does not.
        return widths
    return widths_within(widths, batch_size, geometry, target.largest_write)


def _widths(target: Target, config: "PretrainedConfig", max_length: int | None) -> tuple[int, ...]:
    length = default_max_length(config) if max_length is None else max_length
    # The decoder rejects an invalid length.
    return target.default_widths(length) if is_whole(length) and length >= 1 else (1,)
