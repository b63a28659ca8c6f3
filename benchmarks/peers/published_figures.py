"""
Published figures of other systems, shown beside ours. They were measured on other machines and are no goal.

Sources: "Make your llama generation time fly with AWS Inferentia2", Hugging Face blog, 2023: seconds
to reach 1,024 tokens from 256, 512 and 768. "Intel Gaudi AI accelerator models performance", Habana
documentation: tokens a second, FP8.
"""

import attrs

LATENCY_SOURCE = "Hugging Face blog, Llama on AWS Inferentia2 (2023)"
THROUGHPUT_SOURCE = "Intel Gaudi model performance page, FP8"
LATENCY_LENGTH = 1024


@attrs.frozen
class PublishedLatency:
    """Seconds to reach 1,024 tokens."""

    shape: str
    name: str
    """The blog's configuration."""

    batch: int
    seconds: tuple[float, float, float]
    """From 25, 50 and 75 % of the length."""


@attrs.frozen
class PublishedThroughput:
    """Generated tokens a second."""

    shape: str
    lengths: tuple[int, int]
    """Of prompt and answer."""

    batch: int
    cards: int
    tokens_per_second: float


LATENCIES = (
    PublishedLatency("llama-2-7b", "7B budget, 2 cores", 1, (47.4, 31.9, 16.2)),
    PublishedLatency("llama-2-7b", "7B latency, 24 cores", 1, (6.7, 4.8, 3.0)),
    PublishedLatency("llama-2-13b", "13B latency, 24 cores", 1, (10.4, 7.4, 5.0)),
    PublishedLatency("llama-2-13b", "13B throughput, 24 cores", 4, (13.0, 10.7, 9.6)),
)

LENGTHS = ((128, 128), (128, 2048), (2048, 128), (2048, 2048))
"""Of prompt and answer, on the Gaudi page."""

_GAUDI = {
    "llama-2-7b": ((1230, 163, 94, 81), (1, 1, 1, 1), (13163, 4777, 1291, 1943)),
    "llama-2-70b": ((1750, 750, 95, 78), (2, 4, 2, 2), (2727, 7422, 276, 958)),
    "mistral-7b": ((896, 120, 120, 44), (1, 1, 1, 1), (13112, 7947, 1360, 3143)),
}

THROUGHPUTS = tuple(
    PublishedThroughput(shape, lengths, batch, cards, tokens)
    for shape, columns in _GAUDI.items()
    for lengths, batch, cards, tokens in zip(LENGTHS, *columns, strict=True)
)
