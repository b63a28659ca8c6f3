"""transformers: ``generate`` with its default cache."""

import time
from typing import Any

import attrs
import torch
import transformers
from torch import Tensor


@attrs.define
class _Clock:
    """A streamer that records the time of each call: the prompt, then each token."""

    times: list[float] = attrs.field(factory=list)

    def put(self, ids: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


@attrs.frozen(eq=False)
class TransformersPeer:
    """A transformers model in one dtype."""

    model: Any
    facts: dict[str, Any]

    def generate(self, ids: list[int], count: int) -> dict[str, Any]:
        """Generate *count* tokens after *ids*; seconds to the first token, seconds of the others, the ids."""
        prompt, clock = torch.tensor([ids]), _Clock()
        start = time.perf_counter()
        out = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=count,
            streamer=clock,
        )
        _, first, *others = clock.times
        return {
            "first_seconds": first - start,
            "other_seconds": (others or [first])[-1] - first,
            "ids": out[0, len(ids) :].tolist(),
        }

    def score(self, ids: list[int], following: list[int], file: str) -> int:
        """Write the logits that score each of *following* after *ids* to *file*; the number of rows."""
        with torch.no_grad():
            logits = self.model(torch.tensor([ids + following[:-1]])).logits[0, len(ids) - 1 :]
        logits.float().contiguous().numpy().tofile(file)
        return len(logits)


def peer(specification: dict[str, Any]) -> TransformersPeer:
    """
    Load the model.

    Args:
        specification: ``model``, a folder; ``dtype``, a name; ``threads``.
    """
    torch.set_num_threads(specification["threads"])
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        specification["model"], dtype=specification["dtype"]
    )
    model.train(False)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    facts = {"version": transformers.__version__, "attention": model.config._attn_implementation}
    return TransformersPeer(model, facts)
