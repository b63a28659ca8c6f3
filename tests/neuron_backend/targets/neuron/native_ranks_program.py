"""
Program of every rank in the tensor-parallel test of the native target.

    torchrun --nproc-per-node 2 native_ranks_program.py FOLDER

FOLDER/model is a model. Each rank writes its results to FOLDER/RANK.json.
"""

import importlib.util
import json
import os
import pathlib
import sys
from typing import Any

import torch

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.neuron_backend import NativeTarget, compile_decoder, lint_graph, load_decoder
from decodekit.processors import Temperature, TopK

PROMPTS = [[5, 9, 2, 44, 17], [60, 1, 30]]


def main(folder: pathlib.Path) -> None:
    """Compile, generate text, save and load."""
    spec: Any = importlib.util.spec_from_file_location(
        "dynamo_stand_in", pathlib.Path(__file__).with_name("dynamo_stand_in.py")
    )
    stand_in = importlib.util.module_from_spec(spec)
    sys.modules["dynamo_stand_in"] = stand_in
    spec.loader.exec_module(stand_in)
    parts: dict[str, Any] = {"processors": Temperature(0.8) | TopK(20), "sampler": Sample(seed=7)}
    stop = MaxNewTokens(20)
    backend = stand_in.StandIn()
    decoder = compile_decoder(
        folder / "model",
        batch_size=2,
        max_length=32,
        widths=(1,),
        tp_degree=2,
        target=NativeTarget(backend=backend, device="cpu"),
    )
    found: dict[str, Any] = {
        "greedy": Generator(decoder, stop=stop)(PROMPTS).ids,
        "sampled": Generator(decoder, stop=stop, **parts)(PROMPTS).ids,
        "graphs": len(backend.graphs),
        "writes": len(stand_in.calls(backend.graphs[0], torch.ops.aten.copy_.default)),
        "sums": len(stand_in.calls(backend.graphs[0], torch.ops._c10d_functional.all_reduce.default)),
        "findings": [str(finding) for finding in lint_graph(backend.graphs[0])],
        "heads": decoder.cache.keys[0].shape[1],
    }
    decoder.save(folder / "saved")
    stand_in.PERSISTENT.clear()
    again = stand_in.StandIn()
    loaded = load_decoder(folder / "saved", target=NativeTarget(backend=again, device="cpu"))
    found["loaded"] = Generator(loaded, stop=stop)(PROMPTS).ids
    found["compiled again"] = len(again.compiled)
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
