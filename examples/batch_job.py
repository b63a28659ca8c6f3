"""
Complete a file of prompts with several decoders in parallel, by Ray Data.

    pip install "decodekit[ray]"
    python examples/batch_job.py prompts.jsonl completions --model MODEL --decoders 4 --neuron-cores 2

Each line of the prompts is a JSON object with a "prompt". The output is a folder, new or empty, of
JSON lines that add a "number", a "completion" and a "finish", in no order. A prompt's random stream
is its number, so its completion depends neither on the batching nor on the number of decoders.
"""

import argparse
import json
import math
import pathlib
from typing import Any

import ray


class Complete:
    """Ray actor with one decoder, compiled once in a process that sees only its own cores."""

    def __init__(self, options: argparse.Namespace) -> None:
        # Imported in the actor, when its cores are assigned.
        from transformers import AutoTokenizer

        from decodekit.decoding import EndOfSequence, Generator, Greedy, MaxNewTokens, Sample
        from decodekit.neuron_backend import compile_decoder
        from decodekit.processors import Temperature

        tokenizer = AutoTokenizer.from_pretrained(options.model)
        decoder = compile_decoder(
            options.model,
            batch_size=options.batch_size,
            max_length=options.max_length,
            widths=(1, 64),
            target=options.target,
        )
        self.generator = Generator(
            decoder,
            processors=Temperature(options.temp) if options.temp else None,
            sampler=Sample(seed=options.seed) if options.temp else Greedy(),
            stop=EndOfSequence(tokenizer.eos_token_id) | MaxNewTokens(options.max_tokens),
            tokenizer=tokenizer,
        )

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        result = self.generator(list(batch["prompt"]), random_streams=batch["number"])
        finishes = [finish.reason for finish in result.finishes]
        return {**batch, "completion": result.text, "finish": finishes}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("prompts", type=pathlib.Path)
    add("output", type=pathlib.Path)
    add("--model", required=True)
    add("--batch-size", type=int, default=4, help="rows of each decoder (%(default)s)")
    add("--decoders", type=int, default=1, help="number of decoders (%(default)s); each also takes a CPU")
    add("--neuron-cores", type=int, default=0, help="NeuronCores of each (%(default)s)")
    add("--max-length", type=int, default=512)
    add("--max-tokens", type=int, default=64)
    add("--temp", type=float, default=0.7, help="0 for greedy decoding (%(default)s)")
    add("--seed", type=int, default=0)
    add("--target", default="auto", help="as in compile_decoder (%(default)s)")
    options = parser.parse_args()
    # Before a decoder is compiled in every actor.
    if not 0 <= options.temp < math.inf:
        parser.error(f"--temp must be at least 0 and finite: got {options.temp}")
    # Ray adds files to those of an earlier run.
    if options.output.exists() and (not options.output.is_dir() or any(options.output.iterdir())):
        parser.error(f"the output must be a new or an empty folder: got {options.output}")

    # Not splitlines(), which also splits at characters that JSON may have in a text.
    lines = [line for line in options.prompts.read_text(encoding="utf-8").split("\n") if line.strip()]
    items = [{"number": number, "prompt": json.loads(line)["prompt"]} for number, line in enumerate(lines)]
    completed = ray.data.from_items(items).map_batches(
        Complete,
        fn_constructor_args=(options,),
        batch_size=options.batch_size,
        compute=ray.data.ActorPoolStrategy(size=options.decoders),
        resources={"neuron_cores": options.neuron_cores} if options.neuron_cores else None,
    )
    completed.write_json(str(options.output.resolve()))
    print(f"{len(items)} completions in {options.output}")


if __name__ == "__main__":
    main()
