"""decodekit as a user has it: a decoder compiled, saved, loaded, behind a generator."""

import json
import time
from pathlib import Path
from typing import Any

import attrs
import torch
import transformers

from ...decoding import Generator, MaxNewTokens, Slots
from ...neuron_backend import StaticDecoder, compile_decoder, load_decoder


@attrs.frozen(eq=False)
class DecodekitPeer:
    """Greedy decoding with a decoder of one row."""

    decoder: StaticDecoder
    facts: dict[str, Any]

    def generate(self, ids: list[int], count: int) -> dict[str, Any]:
        """Generate *count* tokens after *ids*; seconds to the first token, seconds of the others, the ids."""
        # Otherwise the prompt would be cached already.
        Slots.of(self.decoder).forget()
        result = Generator(self.decoder, stop=MaxNewTokens(count))(ids)
        first = result.statistics.first_token_seconds or 0.0
        return {
            "first_seconds": first,
            "other_seconds": result.statistics.total_seconds - first,
            "ids": result.ids[0],
        }

    def score(self, ids: list[int], following: list[int], file: str) -> int:
        """Write the logits that score each of *following* after *ids* to *file*; the number of rows."""
        Slots.of(self.decoder).forget()
        before = torch.tensor([ids])
        for start in range(len(ids)):
            logits = self.decoder.forward(before[:, start : start + 1], torch.tensor([start]))
        scores = [logits[0, -1].clone()]
        for i, token in enumerate(following[:-1]):
            logits = self.decoder.forward(torch.tensor([[token]]), torch.tensor([len(ids) + i]))
            scores.append(logits[0, -1].clone())
        torch.stack(scores).numpy().tofile(file)
        return len(scores)


def peer(specification: dict[str, Any]) -> DecodekitPeer:
    """
    Load the decoder from its folder; compile and save it first if it is not there.

    Args:
        specification: ``model`` and ``folder``; ``threads``; and ``options`` of
            :func:`~decodekit.neuron_backend.compile_decoder`.
    """
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(specification["threads"])
    folder, options = Path(specification["folder"]), specification["options"]
    start = time.perf_counter()
    if options.get("target") == "eager":
        decoder = compile_decoder(specification["model"], **options)
    elif (folder / "decoder.json").exists():
        decoder = load_decoder(folder)
    else:
        decoder = compile_decoder(specification["model"], **options)
        decoder.save(folder)
    facts = {
        "target": decoder.target,
        "weight_bytes": decoder.weights.bytes,
        "seconds_to_make": time.perf_counter() - start,
        "options": json.loads(json.dumps(options)),
    }
    return DecodekitPeer(decoder, facts)
