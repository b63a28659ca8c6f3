"""
Tensor parallelism: one model in several processes, each with a shard of weights and KV cache.

    torchrun --nproc-per-node 2 examples/tensor_parallel.py [--model MODEL]

All processes run this program and generate the same tokens; the first one prints them. The default
model is the small draft of examples/pair.
"""

import argparse
import os
import pathlib

from transformers import AutoTokenizer

from decodekit.decoding import EndOfSequence, Generator, Greedy, MaxNewTokens, Sample
from decodekit.neuron_backend import compile_decoder
from decodekit.processors import Temperature, TopP
from decodekit.streaming import TextStreamer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default=str(pathlib.Path(__file__).parent / "pair" / "draft"))
    add("--prompt", default="def main(")
    add("--max-tokens", type=int, default=48)
    add("--temp", type=float, default=0.7, help="0 for greedy decoding (%(default)s)")
    add("--seed", type=int, default=0)
    add("--target", default="auto", help="as in compile_decoder (%(default)s)")
    add("--dtype", help="float32, bfloat16, float16 or float64 (the model's own)")
    options = parser.parse_args()

    # Set by torchrun.
    processes, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    # Made before the decoder, which takes longer, so that a wrong temperature is refused first.
    chain = Temperature(options.temp) | TopP(0.95) if options.temp else None
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    decoder = compile_decoder(
        options.model,
        max_length=256,
        widths=(1, 32),
        target=options.target,
        dtype=options.dtype,
        tp_degree=processes,
    )
    generator = Generator(
        decoder,
        processors=chain,
        sampler=Sample(seed=options.seed) if options.temp else Greedy(),
        stop=EndOfSequence(tokenizer.eos_token_id) | MaxNewTokens(options.max_tokens),
        tokenizer=tokenizer,
    )
    # Every process generates; the first one prints.
    if rank == 0:
        print(options.prompt, end="", flush=True)
    generator(options.prompt, streamer=TextStreamer() if rank == 0 else None)
    if rank == 0:
        heads = decoder.cache.keys[0].shape[1]
        print(f"\n{processes} processes, target {decoder.target}, {heads} key heads in each")


if __name__ == "__main__":
    main()
