"""``python -m decodekit chat``: a conversation, turn by turn, in the model's chat template."""

import argparse
import sys
from collections.abc import Iterator

from ..decoding import Generator
from ..streaming import TextStreamer
from .command_generator import generator_of
from .generation_report import report

_END = "/exit"


def chat(options: argparse.Namespace) -> int:
    """Answer each line of standard input until it ends or a line is ``/exit``."""
    # Imported on demand: only here is it noisy.
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped in transformers
    generator = generator_of(options)
    first = [] if options.system is None else [{"role": "system", "content": options.system}]
    if sys.stdin.isatty():
        print(f"{_END} ends the conversation", file=sys.stderr)
    converse(generator, first, _lines(), samples=options.temp > 0, quiet=options.quiet)
    return 0


def converse(
    generator: Generator,
    messages: list[dict[str, str]],
    lines: Iterator[str],
    *,
    samples: bool = False,
    quiet: bool = False,
) -> None:
    """
    Answer each of *lines*; the conversation so far is the prompt, which the decoder's cache still holds.

    Args:
        generator: A generator with a tokenizer that has a chat template.

        messages: What the conversation begins with; extended.

        lines: What the user says.

        samples: Whether the generator samples, and its seeds are of interest.

        quiet: Whether figures are left out.

    Raises:
        ValueError: The conversation no longer fits; or there is no chat template.
    """
    for line in lines:
        messages.append({"role": "user", "content": line})
        result = generator([messages], streamer=TextStreamer())
        print(flush=True)
        messages.append({"role": "assistant", "content": (result.text or [""])[0]})
        if not quiet:
            print(report(result, samples), file=sys.stderr)


def _lines() -> Iterator[str]:
    """Lines that say something."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line or line.strip() == _END:
            return
        if line.strip():
            yield line.rstrip("\n")
