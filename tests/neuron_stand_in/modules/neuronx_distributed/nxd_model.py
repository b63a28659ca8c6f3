"""NxDModel: programs of several shapes over one set of weights and one of states on each core."""

import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_neuronx.recording import Recording
from torch_neuronx.runtime import Program, States, core_count, make_states, run, to_device

from .trace.model_builder_utils import CompilationArtifacts, LayoutTransformerArtifacts, TraceArtifacts


class NxDModel:
    """As AWS documents it, on the cores of one instance."""

    def __init__(
        self,
        world_size: int,
        start_rank: int | None = None,
        local_ranks_size: int | None = None,
        state_initializer: None = None,
        layout_transformer: LayoutTransformerArtifacts | None = None,
    ):
        if (start_rank, local_ranks_size) != (None, None):
            raise NotImplementedError("the stand-in has one instance")
        self.world_size = self.local_ranks_size = world_size
        # Read at once: the files may be deleted.
        self.layout = None if layout_transformer is None else _read(layout_transformer.neff_filepath)
        self.parameters: dict[str, bool] = {}
        self.recordings: dict[str, Recording] = {}
        self.spmd_models: dict[str, list[Program]] = {}
        self.input_shape_map: dict[str, list[str]] = {}
        self.weights: list[dict[str, Tensor]] = [{}] * world_size
        self.states: list[States] = [{}] * world_size
        self.loaded_on_neuron = False

    def add(
        self, key: str, trace_artifacts: TraceArtifacts, compilation_artifacts: CompilationArtifacts
    ) -> "NxDModel":
        """Add a program; its states must equal those of the first program."""
        recording = Recording.parse(_read(compilation_artifacts.neff_filepath))
        return self._add(key, trace_artifacts.parameters, recording)

    def _add(self, key: str, parameters: dict[str, bool], recording: Recording) -> "NxDModel":
        if self.recordings:
            if parameters != self.parameters:
                raise AssertionError("The model provided appears to have a different signature")
            first = next(iter(self.recordings.values()))
            if _states(first) != _states(recording):
                raise RuntimeError(
                    "every program must have the states of the first, "
                    f"{_states(first)}: got {_states(recording)}"
                )
        self.parameters = parameters
        self.recordings[key] = recording
        route = _route(recording.names, [shape for shape, _ in recording.inputs])
        self.input_shape_map.setdefault(route, []).append(key)
        return self

    def set_weights(self, sharded_checkpoint: list[dict[str, Tensor]]) -> None:
        """Put the weights of each rank on the device."""
        if self.loaded_on_neuron:
            raise ValueError("set_weights() was called when the model was already loaded on neuron.")
        if len(sharded_checkpoint) != self.world_size:
            raise ValueError(
                f"a checkpoint for each of {self.world_size} ranks: got {len(sharded_checkpoint)}"
            )
        if self.world_size > core_count():
            raise RuntimeError(f"a model for {self.world_size} cores needs as many: got {core_count()}")
        if self.layout is not None:
            changed = self.layout.decode().split()
            sharded_checkpoint = [
                {name: one.t().contiguous() if name in changed else one for name, one in own.items()}
                for own in sharded_checkpoint
            ]
        self.weights = [
            {name: to_device(tensor) for name, tensor in own.items()} for own in sharded_checkpoint
        ]

    def to_neuron(self) -> None:
        """Create the states, zeros, and load every program over them."""
        if self.loaded_on_neuron:
            return
        shapes = _states(next(iter(self.recordings.values())))
        zeros = {name: torch.zeros(shape, dtype=_dtype(dtype)) for name, (shape, dtype) in shapes.items()}
        # One dictionary per core, shared by all programs, so that they share states.
        self.states = [make_states(zeros) for _ in range(self.world_size)]
        self.spmd_models = {
            key: [
                Program(recording, weights, states)
                for weights, states in zip(self.weights, self.states, strict=True)
            ]
            for key, recording in self.recordings.items()
        }
        self.loaded_on_neuron = True

    def __call__(self, *args: Tensor, **kwargs: Tensor) -> Any:
        return self.forward(*args, **kwargs)

    def forward(
        self, *args: Tensor, model_name: str | None = None, forward_mode: str = "default", **kwargs: Tensor
    ) -> Any:
        """Run the program that was traced with these inputs at these shapes."""
        if not self.loaded_on_neuron:
            raise RuntimeError("Model not initialized. Call set_weights() followed by to_neuron()")
        if args or forward_mode not in ("default", "ranked"):
            raise NotImplementedError("the stand-in takes keywords, and waits for what it runs")
        ranked = forward_mode == "ranked"
        if ranked and any(len(tensors) != self.world_size for tensors in kwargs.values()):
            raise ValueError("ranked inputs must be lists of a tensor for each rank")
        names = [name for name in self.parameters if name in kwargs]
        missing = [name for name, required in self.parameters.items() if required and name not in kwargs]
        if missing or len(names) != len(kwargs):
            raise AssertionError(f"inputs must be of the traced signature: got {list(kwargs)}")
        inputs = [
            [kwargs[name][rank] if ranked else kwargs[name] for name in names]
            for rank in range(self.world_size)
        ]
        keys = self.input_shape_map[_route(names, [list(tensor.shape) for tensor in inputs[0]])]
        if model_name is None and len(keys) > 1:
            raise AssertionError(f"Got {len(keys)} possible routes but model_name wasn't provided.")
        outputs = run(self.spmd_models[model_name or keys[0]], inputs)
        if ranked:
            # By output and rank, on the device.
            return [list(each) for each in zip(*outputs, strict=True)]
        # All cores got the same inputs; the first core's outputs are returned.
        found = [output.cpu() for output in outputs[0]]
        return found[0] if len(found) == 1 else tuple(found)

    def read_from_neuron_buffer(self, buffer_key: str, rank: int) -> Tensor:
        """A copy of a state or a weight."""
        assert self.loaded_on_neuron, "Model must be loaded on neuron before calling these methods"
        states = {name: state.value for name, state in self.states[rank].items()}
        return {**self.weights[rank], **states}[buffer_key].cpu()

    def save(self, path_to_save: str, save_weights: bool = False) -> None:
        """Store the programs, without weights and states."""
        if save_weights:
            raise NotImplementedError("the stand-in saves no weights")
        with zipfile.ZipFile(path_to_save, "w") as archive:
            archive.writestr("facts.json", json.dumps([self.world_size, self.parameters]))
            if self.layout is not None:
                archive.writestr("layout", self.layout)
            for key, recording in self.recordings.items():
                archive.writestr(f"programs/{key}", recording.dump())

    @classmethod
    def load(
        cls, path_to_model: str, start_rank: int | None = None, local_ranks_size: int | None = None
    ) -> "NxDModel":
        """Load what :meth:`save` stored, without weights and states."""
        with zipfile.ZipFile(path_to_model) as archive:
            world_size, parameters = json.loads(archive.read("facts.json"))
            model = cls(world_size, start_rank, local_ranks_size)
            if "layout" in archive.namelist():
                model.layout = archive.read("layout")
            for name in archive.namelist():
                if name.startswith("programs/"):
                    model._add(
                        name.removeprefix("programs/"), parameters, Recording.parse(archive.read(name))
                    )
        return model


def _route(names: list[str], shapes: list[list[int]]) -> str:
    return ", ".join(f"{name}: {list(shape)}" for name, shape in zip(names, shapes, strict=True))


def _states(recording: Recording) -> dict[str, tuple[list[int], str]]:
    """Shape and dtype of each state."""
    return {
        name: (list(recording.outputs[index][0]), recording.outputs[index][1])
        for name, index in recording.states.items()
    }


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."))
    assert isinstance(found, torch.dtype)
    return found


def _read(path: str) -> bytes:
    return Path(path).read_bytes()
