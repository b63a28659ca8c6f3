"""Flags of the commands that generate text, and their checks before anything is loaded."""

import argparse
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

_DTYPES = ("float32", "bfloat16", "float16", "float64")

LONGEST_DRAFT = 8
"""Draft tokens per step, unless ``--num-draft-tokens`` says how many."""

_LOOKUPS = ("lookup", "suffix")
"""Values of ``--draft`` that need no model."""


def add_generate_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``generate``."""
    add = parser.add_argument_group("prompt").add_argument
    add(
        "--prompt",
        required=True,
        metavar="TEXT",
        help="the prompt; - is standard input, @FILE a file, without a final newline",
    )
    add("--chat", action="store_true", help="the prompt is a user's message, in the model's chat template")
    add_system(add)
    _add_model(parser)
    sampling = _add_sampling(parser)
    sampling("--num-samples", type=int, default=1, metavar="N", help="texts of the prompt (%(default)s)")
    _add_drafts(parser)
    add = parser.add_argument_group("output").add_argument
    add(
        "--stream", action=argparse.BooleanOptionalAction, default=True, help="print text as it becomes final"
    )
    add("--json", action="store_true", help="print one JSON object in place of the text")
    add("--compare", action="store_true", help="decode without the draft too, and compare")
    add_quiet(add)


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``chat``."""
    add_system(parser.add_argument_group("prompt").add_argument)
    _add_model(parser)
    _add_sampling(parser)
    _add_drafts(parser)
    add_quiet(parser.add_argument_group("output").add_argument)


def add_system(add: Callable[..., Any]) -> None:
    """Add ``--system``."""
    add("--system", metavar="TEXT", help="the chat's system message")


def add_quiet(add: Callable[..., Any]) -> None:
    """Add ``--quiet``."""
    add("--quiet", action="store_true", help="no progress and no figures, only text")


def _add_model(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("model").add_argument
    add("--model", required=True, metavar="MODEL", help="a folder, a hub id, a GGUF file or a saved decoder")
    add("--dtype", help="float32, bfloat16, float16 or float64 (the model's own)")
    add("--weights", choices=("int8", "int4", "float8"), help="how linear layers are stored (as --dtype)")
    add("--target", help="auto, cpu, cuda, eager or neuron (auto)")
    add("--max-length", type=int, metavar="N", help="positions of the cache (2048, or the model's if fewer)")
    add("--widths", type=int, nargs="+", metavar="N", help="columns of the forwards (as drafts need)")
    add("--threads", type=int, metavar="N", help="threads of a forward (torch's setting)")
    add(
        "--cache",
        type=pathlib.Path,
        metavar="DIR",
        help="folder of compiled decoders (decoders in $DECODEKIT_CACHE, $XDG_CACHE_HOME/decodekit or "
        "~/.cache/decodekit)",
    )


def _add_sampling(parser: argparse.ArgumentParser) -> Callable[..., Any]:
    add = parser.add_argument_group("sampling and stopping").add_argument
    limit: dict[str, Any] = {"type": int, "default": 128, "metavar": "N", "help": "new tokens (%(default)s)"}
    add("--max-tokens", "--max-new-tokens", **limit)
    add("--stop", action="append", default=[], metavar="STRING", help="end before STRING; may be repeated")
    heat: dict[str, Any] = {
        "type": float,
        "default": 0.0,
        "metavar": "T",
        "help": "0 is greedy (%(default)s)",
    }
    add("--temp", "--temperature", **heat)
    add("--top-k", type=int, default=0, metavar="K", help="keep the top K tokens; 0 is off (%(default)s)")
    nucleus = "nucleus of probability mass P; 1 is off (%(default)s)"
    add("--top-p", type=float, default=1.0, metavar="P", help=nucleus)
    least = "keep tokens of at least P times the top probability; 0 is off"
    add("--min-p", type=float, default=0.0, metavar="P", help=least)
    penalty: dict[str, Any] = {
        "type": float,
        "default": 1.0,
        "metavar": "X",
        "help": "1 is off (%(default)s)",
    }
    add("--repetition-penalty", **penalty)
    add("--seed", type=int, metavar="N", help="seed of samples (a fresh one, which is told)")
    return add


def _add_drafts(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("speculation").add_argument
    add(
        "--draft",
        "--draft-model",
        metavar="DRAFT",
        help="lookup, suffix (both from the text so far), or a smaller model",
    )
    add("--num-draft-tokens", type=int, metavar="K", help="draft tokens per step (as many as pay, up to 8)")


def check_options(options: argparse.Namespace) -> None:
    """
    Check the flags of ``generate`` or ``chat``.

    Raises:
        ValueError: One is invalid; the message says flag, rule and value.
    """
    values = vars(options)
    for flag, rule, holds in _RULES:
        # chat has not all of them.
        value = values.get(flag[2:].replace("-", "_"))
        if value is not None and not holds(value):
            raise ValueError(f"{flag} must be {rule}: got {value}")
    for flag, texts in (("--system", [options.system]), ("--stop", options.stop or [])):
        _check_utf8(flag, texts)
    if options.num_draft_tokens is not None and options.draft is None:
        raise ValueError(f"--num-draft-tokens needs --draft: got {options.num_draft_tokens} without")
    if options.widths is not None:
        _check_widths(options)
    k, longest = options.num_draft_tokens, options.max_length
    if k is not None and longest is not None and longest <= k:
        raise ValueError(f"--max-length must be at least {1 + k}, for {k} draft tokens: got {longest}")
    if options.seed is not None and options.temp == 0:
        raise ValueError(f"--seed needs --temp above 0, since nothing is sampled: got {options.seed}")


def _check_utf8(flag: str, texts: Sequence[str | None]) -> None:
    for text in texts:
        try:
            (text or "").encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{flag} must be UTF-8: got {text!r} ({error.reason})") from error


def scored_width(options: argparse.Namespace) -> int:
    """Columns of the widest verification that checked *options* ask for; without a draft the fewest."""
    if options.draft is None:
        return int(options.widths[0]) if options.widths else 1
    if options.num_draft_tokens is not None:
        return 1 + int(options.num_draft_tokens)
    widths: list[int] = options.widths or [1 + LONGEST_DRAFT]
    return max(width for width in widths if width <= 1 + LONGEST_DRAFT)


def _check_widths(options: argparse.Namespace) -> None:
    widths, k, most = options.widths, options.num_draft_tokens, 1 + LONGEST_DRAFT
    given = " ".join(map(str, widths))
    if widths[0] < 1 or widths != sorted(set(widths)):
        raise ValueError(f"--widths must be at least 1, and ascending: got {given}")
    if options.max_length is not None and widths[-1] > options.max_length:
        raise ValueError(f"--widths must be at most --max-length, {options.max_length}: got {given}")
    if options.draft is None:
        return
    if k is not None and 1 + k not in widths:
        raise ValueError(f"--widths must have {1 + k}, for {k} draft tokens: got {given}")
    if k is None and not any(2 <= width <= most for width in widths):
        raise ValueError(f"--widths must have one from 2 to {most}, for drafts: got {given}")


def check_generate_options(options: argparse.Namespace) -> None:
    """
    Check what ``generate`` has besides, as :func:`check_options`.

    Raises:
        ValueError: As there.
    """
    check_options(options)
    if options.compare and options.draft is None:
        raise ValueError("--compare needs --draft: there is nothing to compare")
    if options.num_samples > 1 and options.temp == 0:
        raise ValueError(f"--num-samples needs --temp above 0 beyond 1: got {options.num_samples}")


def without_model(draft: str | None) -> bool:
    """Whether ``--draft`` is given, and no model."""
    return draft in _LOOKUPS


_RULES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("--temp", "finite and at least 0", lambda value: 0 <= value < math.inf),
    ("--top-k", "at least 0", lambda value: value >= 0),
    ("--top-p", "> 0 and <= 1", lambda value: 0 < value <= 1),
    ("--min-p", ">= 0 and <= 1", lambda value: 0 <= value <= 1),
    ("--repetition-penalty", "finite and above 0", lambda value: 0 < value < math.inf),
    ("--max-tokens", "at least 1", lambda value: value >= 1),
    ("--num-samples", "at least 1", lambda value: value >= 1),
    ("--num-draft-tokens", "at least 1", lambda value: value >= 1),
    ("--max-length", "at least 1", lambda value: value >= 1),
    ("--threads", "at least 1", lambda value: value >= 1),
    ("--dtype", f"one of {', '.join(_DTYPES)}", _DTYPES.__contains__),
)
"""Flag, rule, and whether a value keeps it."""
