"""
``python -m decodekit generate``: text of a model, streamed, with a draft if one is asked for.

``python -m decodekit chat``: a conversation.

``python -m decodekit inspect``: a model's memory and speed limit, before anything is compiled.

``python -m decodekit compile``: a model compiled into a folder.

``python -m decodekit doctor``: what this machine has.

``python -m decodekit bench``: benchmarks.
"""

import argparse
import difflib
import io
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from .benchmarks.command_line import add_bench
from .pretrained.generate_options import (
    add_chat_options,
    add_generate_options,
    check_generate_options,
    check_options,
)

# Heavy imports happen after the arguments are validated.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks must not end a text.
        sys.stdout.reconfigure(errors="replace")
    if sys.stderr is None:
        # print() would write what is meant for a closed one to standard output.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    try:
        status: int = options.command(options)
        if sys.stdout is not None:
            # At exit, nothing would catch that it fails.
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe.
        _drop_output()
        return 1
    except KeyboardInterrupt:
        return 130
    # An optional package may be missing.
    except (ValueError, OSError, ImportError) as error:
        print(f"decodekit: {error}", file=sys.stderr)
        _drop_output()
        return 1
    return status


def _drop_output() -> None:
    """Drop what standard output still buffers and cannot write, rather than fail again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviations, and whose error about an unknown flag names a close one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, for a command too; an unknown flag is an error of the command, with its usage."""
        found, unknown = super().parse_known_args(args, namespace)
        flags = [flag.partition("=")[0] for flag in unknown if flag.startswith("--")]
        for flag in flags:
            close = difflib.get_close_matches(flag, self._option_string_actions, 1)
            self.error(f"unknown flag {flag}" + (f"; did you mean {close[0]}?" if close else ""))
        return found, unknown


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="decodekit", description=sys.modules[__package__].__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_generate(commands)
    _add_chat(commands)
    _add_compile(commands)
    _add_inspect(commands)
    _add_doctor(commands)
    add_bench(commands)
    return parser


def _add_generate(commands: Any) -> None:
    text = "Text of a model, streamed, with a draft running ahead if one is asked for."
    command = commands.add_parser("generate", help="generate text", description=text)
    command.set_defaults(command=_generate)
    add_generate_options(command)


def _generate(options: argparse.Namespace) -> int:
    check_generate_options(options)
    from .pretrained.generate_command import generate

    return generate(options)


def _add_chat(commands: Any) -> None:
    text = (
        "A conversation in the model's chat template, line by line. /undo takes the last turn back, "
        "/edit TEXT says TEXT in its place; /exit or the input's end ends it."
    )
    command = commands.add_parser("chat", help="talk to a model", description=text)
    command.set_defaults(command=_chat)
    add_chat_options(command)


def _chat(options: argparse.Namespace) -> int:
    check_options(options)
    from .pretrained.chat_command import chat

    return chat(options)


def _add_compile(commands: Any) -> None:
    text = "Compile a model into a folder, which load_decoder loads; its tokenizer is saved beside it."
    command = commands.add_parser("compile", help="compile a model into a folder", description=text)
    command.set_defaults(command=_compile)
    add = command.add_argument
    add("--model", required=True, metavar="MODEL", help="a folder, a hub id, or a GGUF file")
    add("-o", "--output", required=True, type=pathlib.Path, metavar="DIR", help="the folder to write")
    add("--target", default="auto", help="auto, cpu, cuda, eager or neuron (%(default)s)")
    add("--batch-size", type=int, default=1, metavar="N", help="rows (%(default)s)")
    add("--max-length", type=int, metavar="N", help="positions of a row (2048, or the model's if fewer)")
    add("--widths", type=int, nargs="+", metavar="N", help="columns of the forwards (as compile_decoder)")
    add("--tree-widths", type=int, nargs="+", metavar="N", help="columns of forwards over trees (none)")
    add(
        "--row-widths",
        type=int,
        nargs="+",
        metavar="N",
        help="columns of forwards of one row (as compile_decoder)",
    )
    add("--copies-rows", action="store_true", help="copy rows on Neuron too, by a program for each span")
    add("--dtype", help="float32, bfloat16, float16 or float64 (the model's own)")
    add("--weights", choices=("int8", "int4", "float8"), help="how linear layers are stored (as --dtype)")
    add("--tp-degree", type=int, default=1, metavar="N", help="shards (%(default)s; see compile_decoder)")
    add(
        "--compiler-args",
        metavar="ARGS",
        help="of neuronx-cc, in one string: '--auto-cast none -O1'; a single one as --compiler-args=-O1",
    )
    add("--quiet", action="store_true", help="no progress in the terminal")


def _compile(options: argparse.Namespace) -> int:
    from .neuron_backend.compile_command import compile_to_folder

    return compile_to_folder(options)


def _add_doctor(commands: Any) -> None:
    text = "What this machine has: packages, compiler, instruction sets, Neuron, GPU; and what auto chooses."
    command = commands.add_parser("doctor", help="what this machine has", description=text)
    command.set_defaults(command=_doctor)
    command.add_argument("--json", action="store_true", help="print JSON")


def _doctor(options: argparse.Namespace) -> int:
    from .neuron_backend.doctor_command import doctor

    return doctor(options)


def _add_inspect(commands: Any) -> None:
    text = "Memory, cores and the bandwidth limit of a model, before anything is compiled; no weights needed."
    inspect = commands.add_parser("inspect", help="memory, cores, limit of tokens/s", description=text)
    inspect.set_defaults(command=_inspect)
    add = inspect.add_argument
    add("model", metavar="MODEL", help="a folder, a hub id, a GGUF file, a config.json, or a saved decoder")
    # What is not given is a saved decoder's own.
    add("--batch-size", "--batch", type=int, metavar="N", help="rows (1)")
    add(
        "--max-length",
        "--length",
        type=int,
        metavar="N",
        help="positions of a row (2048, or the model's if fewer)",
    )
    add("--widths", type=int, nargs="+", metavar="N", help="columns of the forwards (as compile_decoder)")
    add("--spans", type=int, nargs="+", metavar="N", help="positions attended to (as compile_decoder)")
    add("--dtype", help="float32, bfloat16, float16 or float64 (the model's own)")
    add("--weights", choices=("int8", "int4", "float8"), help="how linear layers are stored (as --dtype)")
    add("--instance", metavar="NAME", help="such as inf2.48xlarge (this machine, measured)")
    add("--lnc", type=int, metavar="N", help="physical cores in a logical one, on Trainium2 and 3 (2)")
    add("--tp-degree", type=int, metavar="N", help="cores that share the model (as many as it needs)")
    add("--json", action="store_true", help="print JSON")


def _inspect(options: argparse.Namespace) -> int:
    from .neuron_backend.sizing.inspect_command import inspect

    return inspect(options)


if __name__ == "__main__":
    sys.exit(main())
