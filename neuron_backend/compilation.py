"""From a model to a decoder whose forwards are compiled."""

from collections.abc import Sequence
from os import PathLike

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from . import aoti, trust
from .fingerprint import program_fingerprint
from .shapes import DEFAULT_WIDTHS
from .static_decoder import StaticDecoder
from .weights import weight_dtype

TARGETS = ("auto", "cpu", "eager")


def compile_decoder(
    model: PreTrainedModel | str | PathLike[str],
    *,
    batch_size: int = 1,
    max_length: int | None = None,
    widths: Sequence[int] = DEFAULT_WIDTHS,
    scored_width: int | None = None,
    target: str = "auto",
    dtype: torch.dtype | str | None = None,
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

        target: ``"cpu"`` compiles with AOTInductor, which takes a C++ compiler; ``"eager"``
            compiles nothing; ``"auto"`` is the first where there is a compiler, else the
            second, and the decoder's ``target`` says which.

        dtype: Of weights and cache: float32, bfloat16, float16 or float64, or its name. None:
            the model's own.

    Raises:
        UnsupportedArchitecture: The logits differ from *model*'s, or it cannot be rewound.

        ValueError: An argument breaks its rule.
    """
    target = _resolve(target)
    decoder = StaticDecoder(
        model if isinstance(model, PreTrainedModel) else _load(model, weight_dtype(dtype)),
        batch_size=batch_size,
        max_length=max_length,
        widths=widths,
        scored_width=scored_width,
        dtype=dtype,
    )
    if target == "cpu":
        compile_programs(decoder)
    return decoder


def compile_programs(decoder: StaticDecoder) -> None:
    """Compile every width of an eager *decoder* for the CPU, and compare with the stock model."""
    packages = {}
    for width in decoder.shape.widths:
        fingerprint = program_fingerprint(decoder.step, decoder.shape, width)
        packages[width] = aoti.compile_package(decoder.step, decoder.cache, width, fingerprint)
        trust.record(packages[width].content)
    load_programs(decoder, packages, compiled=True)
    decoder.probe().check(decoder.forward, "the program compiled for the CPU")


def load_programs(decoder: StaticDecoder, packages: dict[int, aoti.Package], *, compiled: bool) -> None:
    """Run *packages*, one for each width, from now on, and run each once."""
    programs = {
        width: aoti.CompiledProgram(
            package, decoder.step, decoder.cache, program_fingerprint(decoder.step, decoder.shape, width)
        )
        for width, package in packages.items()
    }
    decoder.replace_programs(programs, target="cpu", compiled=compiled)
    decoder.packages = packages
    decoder.warm_up()


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
