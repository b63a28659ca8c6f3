"""Shared helpers of tests of decoders that sample."""

from decodekit.decoding import Generator, Logprobs, MaxNewTokens
from decodekit.neuron_backend import compile_decoder

PROMPTS = [[5, 9, 2, 44, 17, 3, 8], [60, 1, 30], [7] * 20]
STOP = MaxNewTokens(30)
WITHOUT = "the decoder was compiled without sampling: pass processors and sampler to compile_decoder"


def build(model, batch_size=3, widths=(1, 5, 16), **options):
    """A decoder whose widest forwards score one column; eager by default."""
    options = {"max_length": 64, "scored_width": 5, "target": "eager", **options}
    return compile_decoder(model, batch_size=batch_size, widths=widths, **options)


def texts(decoder, prompts, processors, sampler, **parts):
    """New ids and log-probabilities."""
    parts = {"processors": processors, "sampler": sampler, "stop": STOP, **parts}
    result = Generator(decoder, **parts)(prompts, logprobs=Logprobs(stage="processed"))
    return result.ids, result.logprobs
