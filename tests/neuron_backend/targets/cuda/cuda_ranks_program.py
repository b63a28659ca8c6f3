"""
Program of every rank in the tensor-parallel test of the CUDA target.

    torchrun --nproc-per-node 2 cuda_ranks_program.py FOLDER

FOLDER/model is a model. Each rank writes its results to FOLDER/RANK.json. On a machine without a GPU,
each rank has a stand-in for one, and sums go through gloo.
"""

import importlib.util
import json
import os
import pathlib
import sys
from typing import Any

import torch

from decodekit.decoding import Generator, MaxNewTokens, Sample
from decodekit.neuron_backend import CudaTarget, compile_decoder, load_decoder
from decodekit.processors import Temperature, TopK

PROMPTS = [[5, 9, 2, 44, 17], [60, 1, 30]]
PARTS: dict[str, Any] = {"processors": Temperature(0.8) | TopK(20), "sampler": Sample(seed=7)}


def target() -> CudaTarget:
    """The target over a stand-in, or over the GPU of this rank."""
    if torch.cuda.device_count() > 1:
        return CudaTarget()
    spec: Any = importlib.util.spec_from_file_location(
        "cuda_stand_in", pathlib.Path(__file__).with_name("cuda_stand_in.py")
    )
    stand_in = importlib.util.module_from_spec(spec)
    sys.modules["cuda_stand_in"] = stand_in
    spec.loader.exec_module(stand_in)
    return CudaTarget(backend=None, runtime=stand_in.CudaStandIn())


def main(folder: pathlib.Path) -> None:
    """Compile, generate text, save and load."""
    stop = MaxNewTokens(20)
    decoder = compile_decoder(
        folder / "model",
        batch_size=2,
        max_length=32,
        widths=(1,),
        tp_degree=2,
        target=target(),
        **PARTS,
    )
    found: dict[str, Any] = {
        "greedy": Generator(decoder, stop=stop)(PROMPTS).ids,
        "sampled": Generator(decoder, stop=stop, **PARTS)(PROMPTS).ids,
        "can_sample": decoder.explain().on_device,
        "heads": decoder.cache.keys[0].shape[1],
    }
    decoder.save(folder / "saved")
    loaded = load_decoder(folder / "saved", target=target())
    found["loaded"] = Generator(loaded, stop=stop)(PROMPTS).ids
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
