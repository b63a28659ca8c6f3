"""
Program of every rank of the tensor-parallel tests; :mod:`.test_sharded_model` reads its results.

    torchrun --nproc-per-node 2 ranks_program.py FOLDER [PART ...]

FOLDER holds models. Each rank writes its results to FOLDER/PART.RANK.json; rank 1 kills itself at the end.
"""

import hashlib
import json
import os
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.neuron_backend import StaticDecoder, compile_decoder, load_decoder
from decodekit.neuron_backend.step import program_name
from decodekit.neuron_backend.tensor_parallel.lost_ranks import fail_together
from decodekit.neuron_backend.tensor_parallel.ranks import Ranks
from decodekit.processors import Temperature, TopK
from decodekit.speculation import DraftModel, PromptLookup, SpeculativeGenerator
from decodekit.testing import check_decoder

PROMPTS = [list(range(3, 30)), [7], [11, 5, 2, 60, 8, 8, 1]]
COUNT = 24
WHOLE = "replicate"


def texts(decoder: StaticDecoder, drafter: Any = None) -> dict[str, list[list[int]]]:
    """Greedy and sampled ids of a batch of different lengths, plain or with a draft."""
    stop = MaxNewTokens(COUNT)
    kind, more = (Generator, {}) if drafter is None else (SpeculativeGenerator, {"drafter": drafter})
    parts: dict[str, Any] = {"processors": Temperature(0.8) | TopK(20), "sampler": Sample(seed=7)}
    return {
        "greedy": kind(decoder, stop=stop, **more)(PROMPTS).ids,
        "sampled": kind(decoder, stop=stop, **parts, **more)(PROMPTS).ids,
    }


def rewinds(decoder: StaticDecoder) -> Iterator[Tensor]:
    """Logits of a prefill, a step, and both again from an earlier position, with other ids."""
    generator = torch.Generator().manual_seed(1)
    rows = decoder.shape.batch_size
    for start, width in ((0, 16), (16, 5), (4, 16), (20, 1), (2, 5), (7, 1)):
        ids = torch.randint(61, (rows, width), generator=generator)
        yield decoder.forward(ids, torch.full((rows,), start)).clone()


def digest(tensors: Any) -> str:
    """SHA digest of the tensors' bytes."""
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()


def decoder_of(model: Any, **options: Any) -> StaticDecoder:
    """The decoder of all comparisons, exact enough that rounding changes no token."""
    return compile_decoder(
        model,
        **{
            "batch_size": 3,
            "max_length": 64,
            "widths": (1, 5, 16),
            "target": "eager",
            "dtype": "float64",
            **options,
        },
    )


def outcome(call: Callable[[], Any]) -> list[str]:
    """Type and message of an error."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def architectures(folder: pathlib.Path) -> dict[str, Any]:
    """Each model: its texts, the bits of its logits, and the heads in its cache."""
    found = {}
    for path in sorted((folder / "models").iterdir()):
        decoder = decoder_of(AutoModelForCausalLM.from_pretrained(path), tp_degree=2)
        logits = list(rewinds(decoder))
        torch.save(logits, folder / f"{path.name}.logits.{dist.get_rank()}.pt")
        found[path.name] = {
            **texts(decoder),
            "bits": digest(logits),
            "heads": [buffer.shape[1] for buffer in decoder.cache.states],
        }
    return found


def llama(folder: pathlib.Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder / "models" / "llama")
    return model


def speculation(folder: pathlib.Path) -> dict[str, Any]:
    """The same texts with drafts: whole on each rank, sharded, an early exit, and a lookup."""
    target = decoder_of(llama(folder), tp_degree=2, tree_widths=(5,))
    draft = AutoModelForCausalLM.from_pretrained(folder / "draft")
    drafters = {
        "whole": DraftModel(decoder_of(draft)),
        "divided": DraftModel(decoder_of(draft, tp_degree=2)),
        "early exit": DraftModel(target.early_exit(1)),
        "lookup": PromptLookup(),
    }
    return {name: texts(target, drafter) for name, drafter in drafters.items()}


class Halved:
    """A user-defined processor, which has no digest."""

    device_safe = True

    def __call__(self, logits: Tensor, history: Any) -> Tensor:
        return logits / 2


def on_device_sampling(folder: pathlib.Path) -> dict[str, Any]:
    """Text sampled on the device, and the program names for a user-defined processor."""
    parts: dict[str, Any] = {"processors": Temperature(0.8) | TopK(20), "sampler": Sample(seed=7)}
    known = decoder_of(llama(folder), tp_degree=2, **parts)
    unknown = decoder_of(llama(folder), tp_degree=2, processors=Halved())
    return {
        "sampled": texts(known)["sampled"],
        "on device": [decoder.explain().on_device for decoder in (known, unknown)],
        "names": [program_name(*step) for step in known.fused_steps() + unknown.fused_steps()],
    }


def precisions(folder: pathlib.Path) -> dict[str, str]:
    """Digests of the logits in lower precisions."""
    return {
        dtype: digest(rewinds(decoder_of(llama(folder), tp_degree=2, dtype=dtype)))
        for dtype in ("bfloat16", "float16", "float32")
    }


def saving(folder: pathlib.Path) -> dict[str, Any]:
    """A compiled decoder, saved, loaded, and compiled again from its folder."""
    shapes: dict[str, Any] = {"batch_size": 1, "widths": (4,), "dtype": None}
    # One layer compiles in half the time.
    source = folder / "draft"
    compiled = decoder_of(source, target="cpu", tp_degree=2, **shapes)
    compiled.save(folder / "compiled")
    loaded = load_decoder(folder / "compiled")
    ids, start = torch.tensor([[1, 2, 3, 4]]), torch.tensor([0])
    eager = decoder_of(source, tp_degree=2, **shapes)
    again = [decoder.forward(ids, start).clone() for decoder in (compiled, loaded, eager)]
    for name in ("tied", "mixtral"):
        decoder_of(folder / "models" / name, tp_degree=2, dtype=None).save(folder / f"saved_{name}")
    loaded_mixtral = load_decoder(folder / "saved_mixtral")
    return {
        "kinds": [compiled.target, compiled.compiled, loaded.target, loaded.compiled, loaded.tp_degree],
        "bits": [digest(again[:1]), digest(again[1:2])],
        "difference": (again[2] - again[0]).abs().max().item(),
        "heads": [buffer.shape[1] for buffer in loaded_mixtral.cache.states],
        "errors": {
            "foreign folder": outcome(lambda: compiled.save(folder / "models")),
        },
    }


def planned(folder: pathlib.Path, styles: dict[str, str]) -> StaticDecoder:
    """A model with another tensor-parallel plan."""
    model = AutoModelForCausalLM.from_pretrained(folder / "even")
    changed = {f"model.layers.*.{name}" if "." in name else name: style for name, style in styles.items()}
    model._tp_plan = {**model.tp_plan, **changed}
    return decoder_of(model, tp_degree=2)


def single_rows(folder: pathlib.Path) -> dict[str, Any]:
    """Samples of one prompt, fed to one row and copied, eager and compiled: ids and copied tokens."""
    found = {}
    for target, dtype in (("eager", "float64"), ("cpu", "float32")):
        decoder = decoder_of(
            folder / "draft", tp_degree=2, target=target, dtype=dtype, widths=(1, 8), scored_width=1
        )
        check_decoder(decoder)
        result = Generator(decoder, sampler=Sample(seed=7), stop=MaxNewTokens(8))(PROMPTS[:1], num_samples=3)
        found[target] = [decoder.row_widths, result.ids, result.statistics.reused]
    return found


def errors(folder: pathlib.Path) -> dict[str, Any]:
    """Errors raised on every rank, after which the ranks continue together."""
    ranks = Ranks.of_environment(2)
    assert ranks is not None
    decoder = decoder_of(llama(folder), tp_degree=2, batch_size=1)

    # Each rank computes the whole output, and the sum is twice as large.
    twice = {"mlp.gate_proj": WHOLE, "mlp.up_proj": WHOLE, "mlp.down_proj": "all_reduce"}

    def one_fails() -> None:
        with fail_together(ranks):
            if ranks.rank == 1:
                raise KeyError("what only rank 1 misses")

    return {
        "degree": outcome(lambda: decoder_of(llama(folder), tp_degree=3)),
        "keys": outcome(lambda: decoder_of(folder / "three_key_heads", tp_degree=2)),
        "inner": outcome(lambda: decoder_of(folder / "odd_inner", tp_degree=2)),
        "no plan": outcome(lambda: decoder_of(folder / "gpt2", tp_degree=2)),
        "a sum too many": outcome(lambda: planned(folder, twice)),
        "a sum too few": outcome(lambda: planned(folder, {"mlp.gate_proj": WHOLE})),
        "half of the head": outcome(lambda: planned(folder, {"lm_head": "colwise"})),
        "other arguments": outcome(lambda: decoder_of(llama(folder), tp_degree=2, batch_size=1 + ranks.rank)),
        "other rows": outcome(
            lambda: decoder_of(llama(folder), tp_degree=2, row_widths=((), (5,))[ranks.rank])
        ),
        "other ids": outcome(lambda: decoder.forward(torch.tensor([[ranks.rank]]), torch.tensor([0]))),
        "other widths": outcome(
            lambda: decoder.forward(torch.zeros(1, (1, 5)[ranks.rank], dtype=torch.int64), torch.tensor([0]))
        ),
        "one fails": outcome(one_fails),
        "afterwards": decoder.forward(torch.tensor([[1]]), torch.tensor([0])).argmax().item(),
    }


def again(folder: pathlib.Path, name: str) -> StaticDecoder:
    """A decoder over a process group that waits no longer than 5 seconds."""
    rank = dist.get_rank()
    dist.destroy_process_group()
    dist.init_process_group(
        "gloo",
        init_method=(folder / name).as_uri(),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=5),
    )
    return decoder_of(llama(folder), tp_degree=2, batch_size=1, widths=(1,))


def lost(folder: pathlib.Path) -> dict[str, Any]:
    """Rank 1 is busy for longer than rank 0 waits; then it ends between two forwards."""
    found = {}
    step = (torch.tensor([[1]]), torch.tensor([0]))
    ended = folder / "rank 0 waits no longer"
    decoder = again(folder, "first")
    if dist.get_rank() == 0:
        found["silent"] = outcome(lambda: decoder.forward(*step))
        ended.touch()
    while not ended.exists():
        time.sleep(0.1)
    decoder = again(folder, "second")
    decoder.forward(*step)
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    found["killed"] = outcome(lambda: decoder.forward(*step))
    return found


PARTS = (architectures, speculation, on_device_sampling, precisions, saving, single_rows, errors, lost)


def main() -> None:
    """Run every part and write its result at once."""
    folder = pathlib.Path(sys.argv[1])
    for part in PARTS if len(sys.argv) == 2 else [globals()[name] for name in sys.argv[2:]]:
        began = time.monotonic()
        found = part(folder)
        (folder / f"{part.__name__}.{dist.get_rank()}.json").write_text(json.dumps(found))
        print(part.__name__, f"{time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
