"""What the commands say of a generation, in words and as JSON."""

from collections.abc import Sequence
from typing import Any

from ..decoding import Generation


def report(result: Generation, sampled: bool) -> str:
    """
    One line: tokens, speed, the first token's time, τ if anything was drafted, the seed, and the reasons.

    τ is the mean number of tokens that a forward of the target yields. The seed is left out unless it was
    *sampled*.
    """
    statistics = result.statistics
    first = 1000 * (statistics.first_token_seconds or 0.0)
    parts = [
        f"{statistics.tokens} tokens in {statistics.total_seconds:.2f} s: "
        f"{statistics.tokens_per_second:.0f} tokens/s",
        f"first token after {first:.0f} ms",
    ]
    if statistics.drafted:
        parts.append(f"mean accepted length τ = {statistics.mean_accepted_length:.2f}")
    if sampled:
        parts.append(f"seed {result.seed}")
    reasons = sorted({reason or "nothing" for reason in result.finish_reasons})
    return f"{', '.join(parts)}, ended by {', '.join(reasons)}"


def as_json(result: Generation, model: str, sampled: bool) -> dict[str, Any]:
    """The result as JSON: one sample a row, and what they cost together; no seed unless it was *sampled*."""
    statistics = result.statistics
    texts: Sequence[str | None] = result.text or [None] * len(result.ids)
    samples = [
        {"text": text, "ids": ids, "finish_reason": reason}
        for text, ids, reason in zip(texts, result.ids, result.finish_reasons, strict=True)
    ]
    return {
        "model": model,
        "prompt_tokens": len(result.prompts[0]),
        "samples": samples,
        "seed": result.seed if sampled else None,
        "statistics": {
            "tokens": statistics.tokens,
            "seconds": statistics.total_seconds,
            "tokens_per_second": statistics.tokens_per_second,
            "first_token_seconds": statistics.first_token_seconds,
            "forwards": statistics.forwards,
            "reused": statistics.reused,
            "drafted": statistics.drafted,
            "accepted": statistics.accepted,
            "mean_accepted_length": statistics.mean_accepted_length,
        },
    }
