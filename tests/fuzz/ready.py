"""The check after a case."""

from .generators import made, outcome, solo
from .tripping_parts import NEVER, Target, TrippingDecoder


def require_ready(seed: int, decoder: Target, drafting: TrippingDecoder) -> None:
    """Check that the next calls give the texts of undisturbed decoders."""
    decoder.trip = drafting.trip = NEVER
    for number in (50, 51):
        generator, prompts = made(seed, number, decoder, drafting)
        assert solo(seed, number) == outcome(generator(prompts)), f"generator {number} after the case"
