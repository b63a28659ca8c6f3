"""
``python -m decodekit generate``: text from a Hugging Face causal LM, streamed, with a draft if given.

``python -m decodekit inspect``: a model's memory and speed limit, before anything is compiled.

``python -m decodekit compile``: a model compiled into a folder.

``python -m decodekit doctor``: what this machine has.

``python -m decodekit bench``: benchmarks.
"""

import argparse
import contextlib
import hashlib
import json
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import Any

from .benchmarks.command_line import add_bench

# Heavy imports happen after the arguments are validated.

_PROMPT_WIDTH = 64
"""Width of a prefill forward."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except (ValueError, OSError) as error:
        print(f"decodekit: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="decodekit", description=sys.modules[__package__].__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_generate(commands)
    _add_compile(commands)
    _add_inspect(commands)
    _add_doctor(commands)
    add_bench(commands)
    return parser


def _add_generate(commands: Any) -> None:
    text = "Text from a Hugging Face causal LM, streamed, with a draft if given."
    generate = commands.add_parser("generate", help="generate text", description=text)
    generate.set_defaults(command=_generate)
    add = generate.add_argument
    add("--model", required=True, metavar="DIR_OR_HUB_ID", help="the model")
    add("--prompt", required=True, help="the prompt")
    add(
        "--max-tokens",
        "--max-new-tokens",
        type=int,
        default=128,
        metavar="N",
        help="new tokens (%(default)s)",
    )
    add(
        "--temp",
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0 is greedy (%(default)s)",
    )
    add(
        "--top-k",
        type=int,
        default=0,
        metavar="K",
        help="keep the top K tokens; 0 is off (%(default)s)",
    )
    add(
        "--top-p",
        type=float,
        default=1.0,
        metavar="P",
        help="nucleus of probability mass P; 1 is off (%(default)s)",
    )
    add(
        "--min-p",
        type=float,
        default=0.0,
        metavar="P",
        help="keep tokens of at least P times the top probability; 0 is off",
    )
    add("--repetition-penalty", type=float, default=1.0, metavar="X", help="1 is off (%(default)s)")
    add("--seed", type=int, default=0, help="sampling seed (%(default)s)")
    add("--stop", action="append", default=[], metavar="STRING", help="end before STRING; may be repeated")
    add(
        "--draft-model",
        metavar="DIR_OR_HUB_ID",
        help="a smaller model of the same vocabulary for speculation",
    )
    add("--num-draft-tokens", type=int, default=4, metavar="K", help="draft tokens per step (%(default)s)")
    add("--compare", action="store_true", help="decode without the draft too, and compare")
    add(
        "--stream", action=argparse.BooleanOptionalAction, default=True, help="print text as it becomes final"
    )
    add("--max-length", type=int, metavar="N", help="positions of the cache (2048, or the model's if fewer)")
    add("--dtype", help="float32, bfloat16, float16 or float64 (the model's own)")
    add("--target", default="auto", help="auto, cpu, eager or neuron (%(default)s)")
    add("--quiet", action="store_true", help="no progress of compiling and loading in the terminal")
    add(
        "--cache",
        type=pathlib.Path,
        metavar="DIR",
        help="folder of compiled decoders ($DECODEKIT_CACHE/decoders, or ~/.cache/decodekit/decoders)",
    )


def _add_compile(commands: Any) -> None:
    text = "Compile a model into a folder, which load_decoder loads; its tokenizer is saved beside it."
    command = commands.add_parser("compile", help="compile a model into a folder", description=text)
    command.set_defaults(command=_compile)
    add = command.add_argument
    add("--model", required=True, metavar="MODEL", help="a folder, a hub id, or a GGUF file")
    add("-o", "--output", required=True, type=pathlib.Path, metavar="DIR", help="the folder to write")
    add("--target", default="auto", help="auto, cpu, cuda or neuron (%(default)s)")
    add("--batch-size", type=int, default=1, metavar="N", help="rows (%(default)s)")
    add("--max-length", type=int, metavar="N", help="positions of a row (2048, or the model's if fewer)")
    add("--widths", type=int, nargs="+", metavar="N", help="columns of the forwards (as compile_decoder)")
    add("--tree-widths", type=int, nargs="+", metavar="N", help="columns of forwards over trees (none)")
    add("--dtype", help="float32, bfloat16, float16 or float64 (the model's own)")
    add("--weights", choices=("int8", "int4", "float8"), help="how linear layers are stored (as --dtype)")
    add("--threads", type=int, metavar="N", help="threads of a forward (torch's setting)")
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
    add("model", metavar="MODEL", help="a folder, a hub id, or a config.json alone")
    add("--batch", type=int, default=1, metavar="N", help="rows (%(default)s)")
    add("--length", type=int, metavar="N", help="positions of a row (2048, or the model's if fewer)")
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


def _generate(options: argparse.Namespace) -> int:
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from .decoding import EndOfSequence, Generator, Greedy, MaxNewTokens, Sample, Slots, StopStrings
    from .neuron_backend.models.model_source import find_config
    from .processors import Chain, MinP, RepetitionPenalty, Temperature, TopK, TopP
    from .speculation import DraftModel
    from .streaming import TextStreamer

    if options.compare and not options.draft_model:
        raise ValueError("--compare needs --draft-model: there is nothing to compare")
    if options.temp == 0 and (options.top_k, options.top_p, options.min_p) != (0, 1.0, 0.0):
        print("decodekit: --top-k, --top-p and --min-p change nothing at --temp 0", file=sys.stderr)
    if options.draft_model and options.num_draft_tokens < 1:
        raise ValueError(f"--num-draft-tokens must be at least 1: got {options.num_draft_tokens}")
    # The progress bar would mix with the text.
    disable_progress_bar()  # type: ignore[no-untyped-call]  # untyped in transformers
    # Checked before anything is loaded or compiled.
    processors = Chain((
        RepetitionPenalty(options.repetition_penalty),
        *([Temperature(options.temp)] if options.temp != 0 else []),
        TopK(options.top_k),
        TopP(options.top_p),
        MinP(options.min_p),
    ))  # fmt: skip
    stop: Any = MaxNewTokens(options.max_tokens)
    config = find_config(options.model, "--model")
    draft_config = find_config(options.draft_model, "--draft-model") if options.draft_model else None
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    ends = _ends_of_sequence(options.model, tokenizer)
    if ends:
        stop = EndOfSequence(ends) | stop
    if options.stop:
        stop = StopStrings(options.stop, tokenizer) | stop

    columns = options.num_draft_tokens + 1 if options.draft_model else 1
    target = _decoder(options, options.model, config, {1, columns}, columns)
    drafter = None
    if draft_config:
        # After a fully accepted draft the draft model lacks two tokens.
        drafter = DraftModel(_decoder(options, options.draft_model, draft_config, {1, 2}, 1))
    parts: dict[str, Any] = {
        "processors": processors,
        "sampler": Greedy() if options.temp == 0 else Sample(seed=options.seed),
        "stop": stop,
        "tokenizer": tokenizer,
    }
    generator = Generator(target, drafter=drafter, num_draft_tokens=options.num_draft_tokens, **parts)
    print(options.prompt, end="", flush=True)
    result = generator(options.prompt, streamer=TextStreamer() if options.stream else None)
    if not options.stream:
        print((result.text or [""])[0])
    finish = result.finishes[0]
    print(f"\n{_report(result.statistics)}, ended by {finish.reason if finish else None}", file=sys.stderr)
    if options.compare:
        Slots.of(target).forget()  # otherwise the prompt would be cached
        return _compare(result, Generator(target, **parts)(options.prompt))
    return 0


def _ends_of_sequence(model: str, tokenizer: Any) -> set[int]:
    """End-of-sequence ids of the tokenizer and of the generation config."""
    from transformers import GenerationConfig

    ends: Any = []
    # Not every model has a generation config.
    with contextlib.suppress(OSError):
        ends = GenerationConfig.from_pretrained(model).eos_token_id or []
    ends = [ends] if isinstance(ends, int) else ends
    own = tokenizer.eos_token_id
    return {*ends} | ({own} if own is not None else set())


def _compare(fast: Any, plain: Any) -> int:
    """Compare with plain decoding; 1 if the tokens differ."""
    ratio = plain.statistics.total_seconds / fast.statistics.total_seconds
    same = "the same tokens"
    if plain.ids != fast.ids:
        same = "OTHER TOKENS: programs of different widths round differently, and two logits were nearly tied"
    print(f"plain decoding: {_report(plain.statistics)}", file=sys.stderr)
    print(f"with the draft: {ratio:.2f} times as fast, {same}", file=sys.stderr)
    return int(plain.ids != fast.ids)


def _report(statistics: Any) -> str:
    first = 1000 * (statistics.first_token_seconds or 0.0)
    text = (
        f"{statistics.tokens} tokens in {statistics.total_seconds:.2f} s: "
        f"{statistics.tokens_per_second:.0f} tokens/s, first token after {first:.0f} ms"
    )
    if statistics.drafted:
        text += f", mean accepted length τ = {statistics.mean_accepted_length:.2f}"
    return text


def _decoder(
    options: argparse.Namespace, model: str, config: pathlib.Path, widths: set[int], scored_width: int
) -> Any:
    """The decoder of *model*, from the cache if it was compiled for these shapes before."""
    from .decoding.user_cache import cache_folder
    from .neuron_backend import compile_decoder, load_decoder
    from .neuron_backend.progress_option import ProgressOption

    arguments = {"max_length": options.max_length, "dtype": options.dtype, "target": options.target}
    prompt_width = min(_PROMPT_WIDTH, options.max_length or _PROMPT_WIDTH)
    arguments |= {"widths": sorted(widths | {prompt_width}), "scored_width": scored_width}
    cache = options.cache or cache_folder() / "decoders"
    folder = cache / _key(config, arguments)
    progress: ProgressOption = False if options.quiet else None
    if options.target != "eager" and (folder / "decoder.json").exists():
        # One of another torch version, or a modified one, is compiled again.
        with contextlib.suppress(ValueError):
            return load_decoder(folder, progress=progress)
        shutil.rmtree(folder)
    kept = "" if options.target == "eager" else f" (compiled once, kept in {cache})"
    print(f"preparing {model}{kept}", file=sys.stderr)
    decoder = compile_decoder(model, **arguments, progress=progress)
    if decoder.target != "eager":
        try:
            decoder.save(folder)
        except OSError as error:
            print(f"not kept, to be compiled again next time: {error}", file=sys.stderr)
    return decoder


def _key(config: pathlib.Path, arguments: dict[str, Any]) -> str:
    """Cache key of the model of *config* in its current state, compiled with *arguments*."""
    folder = config.absolute().parent
    # A hub snapshot is identified by its commit, and its files may still be downloading.
    files = [] if folder.parent.name == "snapshots" else sorted(folder.iterdir())
    state = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    known = json.dumps([str(folder), state, arguments], sort_keys=True)
    return f"{folder.name}-{hashlib.sha256(known.encode()).hexdigest()[:16]}"


if __name__ == "__main__":
    sys.exit(main())
