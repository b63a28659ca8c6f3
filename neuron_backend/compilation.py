"""From a model to a decoder whose forwards are compiled."""

from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING

import torch

from ..decoding.protocols import Processor, Selection
from ..decoding.whole_numbers import as_tuple, is_whole
from .fused.asked import check_asked, check_rows
from .model_source import check_model, load_model
from .shapes import default_max_length
from .targets.target import Target, check_target, target_named
from .threads import check_threads
from .weights import weight_dtype

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .static_decoder import StaticDecoder


def compile_decoder(
    model: "PreTrainedModel | str | PathLike[str]",
    *,
    batch_size: int = 1,
    max_length: int | None = None,
    widths: Sequence[int] | None = None,
    scored_width: int | None = None,
    tree_widths: Sequence[int] = (),
    spans: Sequence[int] | None = None,
    processors: Processor | None = None,
    selection: Selection | None = None,
    target: str | Target = "auto",
    dtype: torch.dtype | str | None = None,
    weights: str | None = None,
    threads: int | None = None,
    tp_degree: int = 1,
) -> "StaticDecoder":
    """
    Compile *model* for fixed shapes. No forward compiles anything later.

    Args:
        model: A Hugging Face causal LM, or the path or hub id of one. It is not modified, and
            its weights are shared unless *dtype* is another than theirs, *weights* stores them in
            fewer bits, *tp_degree* divides them, or they lie in a mapped file. Programs for the CPU
            have the weights of queries, keys and values in one piece, and those of gate and up:
            of a model that you keep, these are copies.

        batch_size: Rows of every forward.

        max_length: Positions of a row. None: 2048, or as many as *model* knows if fewer.

        widths: Columns of the forwards, ascending, at most *max_length*; one program each. None:
            1, 5 and 128; on Neuron 1, 5 and powers of two from 128 to *max_length*, or 1, 5 and 64
            where one program serves all of them. None beyond *max_length*, which is the widest if
            it is less.

        scored_width: Forwards up to this width score every column. None: the largest width up
            to 32, else the smallest.

        tree_widths: Columns of the forwards over trees, ascending, at most *max_length*; one program
            each. None are compiled unless asked for: see :meth:`StaticDecoder.forward_tree`.

        spans: How many leading positions a forward attends to: the smallest that holds all of
            its tokens. Ascending, the last of them *max_length*. None: powers of two from 128.

        processors: What a :class:`~decodekit.decoding.Generator` is going to process logits with:
            compiled behind every forward that scores all its columns, together with *selection*,
            so that the tokens are chosen there and the logits stay there. If a part has no form
            for that, the host chooses as ever; :meth:`StaticDecoder.explain` says what runs where.
            Any other chain may be used all the same; it runs on the host.

        selection: What the generator is going to choose with. None: greedy, if there are
            *processors*; else nothing is compiled behind the forwards.

        target: ``"cpu"`` compiles with AOTInductor, which takes a C++ compiler; ``"eager"``
            compiles nothing; ``"neuron"`` compiles for the Neuron package that is installed,
            ``"neuron-native"`` or ``"neuron-traced"``; ``"cuda"`` records CUDA graphs on a GPU;
            ``"auto"`` is ``"neuron"`` where there is a device, else ``"cuda"`` where there is a GPU, else
            ``"cpu"`` where there is a compiler, else ``"eager"``, and the decoder's
            ``target`` says which. Or a :class:`~.targets.target.Target` with options of its own.

        dtype: Of weights and cache: float32, bfloat16, float16 or float64, or its name. None:
            the model's own.

        weights: ``"int8"``, ``"int4"`` or ``"float8"`` stores linear layers in so many bits, with scales;
            activations keep *dtype*. None: as they are. ``decoder.weights`` says what became of
            which layer, and :func:`~.quantization.drift.drift` what it costs.

        threads: How many a forward may use. None: as many as torch does; 1 is best for a small
            draft. It may be changed later, as ``decoder.threads``.

        tp_degree: Processes that hold the model together, each a part of its weights and of the
            cache. More than 1 takes a program that ``torchrun --nproc-per-node TP_DEGREE`` has
            started as often; all processes make the same calls (:mod:`~.parallel.ranks`). For
            ``"neuron-traced"`` it is cores, which one process drives (:mod:`~.parallel.cores`).

    Raises:
        UnsupportedArchitecture: The logits differ from *model*'s, or it cannot be rewound.

        ValueError: An argument breaks its rule.

        TypeError: One is of another type.

        FileNotFoundError: *model* is neither a folder with a model nor on the hub.

        LostRank: Another process has failed or ended.
    """
    # A program that names this may well load a decoder instead, or compile none in this run.
    from .parallel.cores import holders
    from .parallel.ranks import naming_lost_ranks
    from .parallel.tensor_parallel import model_of
    from .static_decoder import StaticDecoder

    compiler = _resolve(target)
    check_threads(threads)
    check_model(model)
    check_asked(processors, selection)
    check_rows(processors, batch_size)
    if weights == "float8" and compiler.name.startswith("neuron"):
        raise ValueError(
            f"'weights' must be 'int8', 'int4' or None for target {compiler.name!r}: got 'float8', "
            "whose range Neuron's own 8-bit floats do not have"
        )
    compiler.require()
    ranks, cores = holders(compiler, tp_degree)
    if tp_degree > 1 and weights is not None:
        raise ValueError(f"'weights' must be None with tp_degree > 1: got {weights!r}")
    with naming_lost_ranks(ranks):
        if ranks is not None:
            asked = None if widths is None else as_tuple("widths", widths)
            shape = (batch_size, max_length, asked, scored_width, as_tuple("tree_widths", tree_widths), spans)
            ranks.check_call(shape, compiler.name, dtype, processors is None, selection is None)
        adopted = model_of(model, partial(load_model, dtype=weight_dtype(dtype)), ranks)
        decoder = StaticDecoder(
            adopted,
            batch_size=batch_size,
            max_length=max_length,
            widths=_widths(compiler, adopted, max_length) if widths is None else widths,
            scored_width=scored_width,
            tree_widths=tree_widths,
            spans=spans,
            dtype=dtype,
            weights=weights,
        )
        decoder.threads, decoder.cores = threads, cores
        if processors is not None or selection is not None:
            decoder.fuse(processors, selection)
        compiler.compile(decoder)
    return decoder


def _resolve(target: str | Target) -> Target:
    if isinstance(target, str):
        return target_named(target)
    check_target(target)
    return target


def _widths(target: Target, model: "PreTrainedModel", max_length: int | None) -> tuple[int, ...]:
    length = default_max_length(model) if max_length is None else max_length
    # What is no length, the decoder refuses.
    return target.default_widths(length) if is_whole(length) and length >= 1 else (1,)
