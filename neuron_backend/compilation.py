"""From a model to a decoder whose forwards are compiled."""

from collections.abc import Sequence
from os import PathLike

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from . import aoti, trust
from .fingerprint import program_fingerprint
from .shapes import DEFAULT_WIDTHS
from .static_decoder import StaticDecoder
from .step import Step, program_name
from .threads import check_threads
from .weights import weight_dtype

TARGETS = ("auto", "cpu", "eager")


def compile_decoder(
    model: PreTrainedModel | str | PathLike[str],
    *,
    batch_size: int = 1,
    max_length: int | None = None,
    widths: Sequence[int] = DEFAULT_WIDTHS,
    scored_width: int | None = None,
    tree_widths: Sequence[int] = (),
    target: str = "auto",
    dtype: torch.dtype | str | None = None,
    threads: int | None = None,
) -> StaticDecoder:
    """
    Compile *model* for fixed shapes. No forward compiles anything later.

    Args:
        model: A Hugging Face causal LM, or the path or hub id of one. It is not modified, and
            its weights are shared unless *dtype* is another than theirs.

        batch_size: Rows of every forward.

        max_length: Positions of a row. None: 2048, or as many as *model* knows if fewer.

        widths: Columns of the forwards, ascending, at most *max_length*; one program each.

        scored_width: Forwards up to this width score every column. None: the largest width up
            to 32, else the smallest.

        tree_widths: Columns of the forwards over trees, ascending; one program each. None are
            compiled unless asked for: see :meth:`StaticDecoder.forward_tree`.

        target: ``"cpu"`` compiles with AOTInductor, which takes a C++ compiler; ``"eager"``
            compiles nothing; ``"auto"`` is the first where there is a compiler, else the
            second, and the decoder's ``target`` says which.

        dtype: Of weights and cache: float32, bfloat16, float16 or float64, or its name. None:
            the model's own.

        threads: How many a forward may use. None: as many as torch does; 1 is best for a small
            draft. It may be changed later, as ``decoder.threads``.

    Raises:
        UnsupportedArchitecture: The logits differ from *model*'s, or it cannot be rewound.

        ValueError: An argument breaks its rule.
    """
    target = _resolve(target)
    check_threads(threads)
    decoder = StaticDecoder(
        model if isinstance(model, PreTrainedModel) else _load(model, weight_dtype(dtype)),
        batch_size=batch_size,
        max_length=max_length,
        widths=widths,
        scored_width=scored_width,
        tree_widths=tree_widths,
        dtype=dtype,
    )
    decoder.threads = threads
    if target == "cpu":
        compile_programs(decoder)
    return decoder


def compile_programs(decoder: StaticDecoder) -> None:
    """Compile every width of an eager *decoder* for the CPU, and compare with the stock model."""
    packages = {}
    for step, width in decoder.steps():
        package = aoti.compile_package(step, decoder.cache, width, _fingerprint(decoder, step, width))
        trust.record(package.content)
        packages[program_name(step, width)] = package
    load_programs(decoder, packages, compiled=True)
    decoder.compare("the program compiled for the CPU")


def load_programs(decoder: StaticDecoder, packages: dict[str, aoti.Package], *, compiled: bool) -> None:
    """Run *packages*, one for each program's name, from now on, and run each once."""

    def program(step: Step, width: int) -> aoti.CompiledProgram:
        package = packages[program_name(step, width)]
        return aoti.CompiledProgram(package, step, decoder.cache, _fingerprint(decoder, step, width))

    decoder.replace_programs(
        {width: program(decoder.step, width) for width in decoder.shape.widths},
        {width: program(decoder.tree_step, width) for width in decoder.tree_widths},
        target="cpu",
        compiled=compiled,
    )
    decoder.packages = packages
    decoder.warm_up()


def _fingerprint(decoder: StaticDecoder, step: Step, width: int) -> str:
    scratch = decoder.cache.slots - decoder.shape.max_length - 1
    return program_fingerprint(step, decoder.shape, width, scratch)


def require_compiler() -> None:
    """Raise unless there is a C++ compiler."""
    if not aoti.has_compiler():
        raise ValueError(
            "target 'cpu' needs a C++ compiler: g++, or what the variable CXX names: got none; "
            "target 'eager' needs none"
        )


def _resolve(target: str) -> str:
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}: got {target!r}")
    if target == "auto":
        return "cpu" if aoti.has_compiler() else "eager"
    if target == "cpu":
        require_compiler()
    return target


def _load(path: str | PathLike[str], dtype: torch.dtype | None) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype or "auto")
    return model
