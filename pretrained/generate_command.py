"""``python -m decodekit generate``: text of a model, streamed, with a draft if one is asked for."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs

from ..decoding import Generation, Generator, Sample, Slots
from ..decoding.chat import chat_ids
from ..decoding.optional_protocols import decoders_of
from ..streaming import TextStreamer
from .command_generator import generator_of
from .generation_report import as_json, report


def generate(options: argparse.Namespace) -> int:
    """Generate what *options*, checked, ask for; 1 if ``--compare`` finds other tokens."""
    text = prompt_text(options.prompt)
    if options.chat or options.system is not None:
        prompt: Any = chat_of(text, options.system)
        shown = ""
    else:
        prompt, shown = text, text
    generator = generator_of(options, options.num_samples, partial(_check_prompt, prompt))
    prompts = [prompt] * options.num_samples
    result = _generate(generator, prompts, options, shown)
    if not options.quiet:
        print(report(result, options.temp > 0), file=sys.stderr)
    return _compare(generator, prompts, result, options.temp > 0) if options.compare else 0


def _check_prompt(prompt: Any, tokenizer: Any, positions: int | None) -> None:
    """Encode *prompt* before anything is compiled; refuse one that is longer than a row."""
    ids = tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else chat_ids(prompt, tokenizer)
    if positions is not None and len(ids) > positions:
        raise ValueError(f"--prompt must have at most {positions} tokens (--max-length): got {len(ids)}")


def prompt_text(prompt: str) -> str:
    """
    The text that ``--prompt`` names: itself, or standard input or a file without its final newline.

    Raises:
        ValueError: The text is empty, is not UTF-8, or cannot be read.
    """
    try:
        if prompt == "-":
            if sys.stdin is None:
                raise ValueError("--prompt - needs standard input: got a closed one")
            # As open() does for a file.
            text = sys.stdin.read().replace("\r\n", "\n").removesuffix("\n")
        elif prompt.startswith("@"):
            with open(prompt[1:], encoding="utf-8") as file:
                text = file.read().removesuffix("\n")
        else:
            text = prompt
        # Arguments and standard input may hold bytes that are not UTF-8 as lone surrogates.
        text.encode()
    except OSError as error:
        raise ValueError(
            f"--prompt must name a file that can be read: got {prompt} ({error.strerror})"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"--prompt must be UTF-8: got {prompt} ({error})") from error
    except UnicodeEncodeError as error:
        raise ValueError(f"--prompt must be UTF-8: got {text!r:.200} ({error.reason})") from error
    if not text:
        raise ValueError(f"--prompt must not be empty: got {prompt!r}")
    return text


def chat_of(text: str, system: str | None) -> list[dict[str, str]]:
    """A chat of one message, after the system's if there is one."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def _generate(
    generator: Generator, prompts: Sequence[Any], options: argparse.Namespace, shown: str
) -> Generation:
    """Generate and print; *shown* is printed before a text."""
    streams = options.stream and len(prompts) == 1 and not options.json
    if streams:
        print(shown, end="", flush=True)
        result: Generation = generator(prompts, streamer=TextStreamer())
        # Where the text ended without one.
        print(file=sys.stderr)
        return result
    result = generator(prompts)
    if options.json:
        encoding = sys.stdout.encoding
        # Escaped, a character that the encoding lacks is not lost.
        escapes = encoding is not None and encoding.lower() != "utf-8"
        print(json.dumps(as_json(result, options.model, options.temp > 0), ensure_ascii=escapes))
        return result
    for number, text in enumerate(result.text or [], 1):
        if len(prompts) > 1:
            print(f"--- {number} of {len(prompts)}")
        print(f"{shown}{text}")
    return result


def _compare(generator: Generator, prompts: Sequence[Any], fast: Generation, sampled: bool) -> int:
    """Compare with plain decoding; 1 if the tokens differ."""
    for decoder in decoders_of(generator.decoder):
        Slots.of(decoder).forget()  # otherwise the prompt would be cached
    # With the seed that was drawn.
    sampler = Sample(seed=fast.seed) if sampled else generator.sampler
    plain = attrs.evolve(generator, drafter=None, sampler=sampler)(prompts)
    ratio = plain.statistics.total_seconds / fast.statistics.total_seconds
    same = "the same tokens"
    if plain.ids != fast.ids:
        same = "OTHER TOKENS: programs of different widths round differently, and two logits were nearly tied"
    print(f"plain decoding: {report(plain, sampled)}", file=sys.stderr)
    tau = f"{fast.statistics.mean_accepted_length:.1f} tokens per forward (τ) instead of 1"
    print(f"with the draft: {ratio:.2f} times as fast, {tau}; {same}", file=sys.stderr)
    return int(plain.ids != fast.ids)
