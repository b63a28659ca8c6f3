"""
Question: how often does the bundled draft agree with the target on files that neither has seen.

    python benchmarks/acceptance.py [--prompts N] [--tokens N] [--temp T] [--num-draft-tokens K] [--json FILE]

Prompts are windows of 128 tokens from held-out files of the standard library, one from each
file before a second from any; what follows is generated with the draft running ahead.
Decoding is eager: this counts tokens, not time.
"""

import argparse
import pathlib
import sys

from transformers import AutoTokenizer

from decodekit.bench.report import Report, Table, finish
from decodekit.decoding import Generator, Greedy, MaxNewTokens, Sample, Statistics
from decodekit.neuron_backend import compile_decoder
from decodekit.processors import Temperature
from decodekit.speculation import DraftModel

PAIR = pathlib.Path(__file__).parents[1] / "examples" / "pair"
PROMPT = 128
ROWS = 8


def held_out_prompts(count: int) -> list[list[int]]:
    """*count* windows, the first of every held-out file before the second of any."""
    sys.path.insert(0, str(PAIR))
    import train

    tokenizer = AutoTokenizer.from_pretrained(PAIR / "target")
    files = [tokenizer(text)["input_ids"] for text in train.held_out()]
    longest = max(map(len, files))
    windows = [file[at : at + PROMPT] for at in range(0, longest, 4 * PROMPT) for file in files]
    return [window for window in windows if len(window) == PROMPT][:count]


def measure(prompts: int, tokens: int, temperature: float, num_draft_tokens: int) -> Statistics:
    """Generate *tokens* after each prompt, and add up what was accepted."""
    shape = {"batch_size": ROWS, "max_length": 512, "target": "eager", "dtype": "float32"}
    k = num_draft_tokens
    target = compile_decoder(PAIR / "target", widths=(1, k + 1, PROMPT), scored_width=k + 1, **shape)
    draft = compile_decoder(PAIR / "draft", widths=(1, 2, PROMPT), scored_width=1, **shape)
    generator = Generator(
        target,
        drafter=DraftModel(draft),
        num_draft_tokens=k,
        processors=None if temperature == 0 else Temperature(temperature),
        selection=Greedy() if temperature == 0 else Sample(seed=0),
        stop=MaxNewTokens(tokens),
    )
    total, windows = Statistics(), held_out_prompts(prompts)
    for start in range(0, len(windows), ROWS):
        rows = windows[start : start + ROWS]
        total += generator(rows, streams=range(start, start + len(rows))).statistics
    return total


def main() -> None:
    """Measure, and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--temp", type=float, default=0.7)
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    k = options.num_draft_tokens
    total = measure(options.prompts, options.tokens, options.temp, k)
    places = zip(total.drafted, total.reached, total.accepted, strict=True)
    rows = [
        (i + 1, drafted, reached, accepted, accepted / reached if reached else None)
        for i, (drafted, reached, accepted) in enumerate(places)
    ]
    finish(
        Report(
            benchmark="acceptance",
            question="How often does the bundled draft agree with the target on files that neither has seen?",
            settings={
                "prompts": options.prompts,
                "tokens": total.tokens,
                "temperature": options.temp,
                "k": k,
            },
            tables=[
                Table(
                    "Guesses by their place in the draft",
                    ("place", "drafted", "where all before stood", "stood", "share"),
                    rows,
                )
            ],
            notes=[f"Mean accepted length τ = {total.mean_accepted_length:.2f} tokens a target forward."],
            results={
                "tau": total.mean_accepted_length,
                "drafted": total.drafted,
                "reached": total.reached,
                "accepted": total.accepted,
            },
        ),
        options.json,
    )


if __name__ == "__main__":
    main()
