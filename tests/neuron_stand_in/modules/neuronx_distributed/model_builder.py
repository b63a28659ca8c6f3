"""ModelBuilder v2: traces a module at several shapes, and compiles the traces."""

import inspect
import traceback
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_neuronx.recording import CompileError, record

from .nxd_model import NxDModel
from .trace import functions
from .trace.model_builder_utils import Hlo, TraceArtifacts


class ModelBuilder:
    """As AWS documents it."""

    def __init__(self, model: nn.Module, weights_to_skip_layout_optimization: Any = None):
        self.model = model
        distributed = torch.distributed
        self.world_size = distributed.get_world_size() if distributed.is_initialized() else 1
        self.trace_artifacts_collection: dict[str, TraceArtifacts] = {}

    def trace(
        self,
        args: Any = None,
        kwargs: Mapping[str, Tensor] | None = None,
        tag: str | None = None,
        spmd: bool = True,
    ) -> "ModelBuilder":
        """Record the model at the shapes of *kwargs*; positional inputs and default tags are not emulated."""
        if args is not None or kwargs is None or tag is None or not spmd:
            raise NotImplementedError(
                "the stand-in traces by keyword, under a tag, for one program on all ranks"
            )
        parameters = _parameters(self.model)
        required = {name for name, is_required in parameters.items() if is_required}
        if not required <= set(kwargs) <= set(parameters):
            raise ValueError(f"kwargs must be among {list(parameters)}: got {list(kwargs)}")
        # Parameters left out have their default, None, and are not inputs of this program.
        inputs = {name: kwargs[name] for name in parameters if name in kwargs}
        try:
            recording = record(self.model, inputs, _reassigned, by_name=True)
        except Exception as error:
            # Recorded operations are run with later ones as long as their tensors are referenced.
            traceback.clear_frames(error.__traceback__)
            raise RuntimeError(f"HLO generation failed: {error}") from error
        weights = [name for name in recording.tensors if name not in recording.states]
        self.trace_artifacts_collection[tag] = TraceArtifacts(
            hlo=Hlo(recording),
            metaneff=b"names of " + ", ".join(weights).encode(),
            weight_name_to_idx={name.replace(".", "->"): index for index, name in enumerate(weights)},
            parameters=parameters,
        )
        return self

    def compile(
        self,
        priority_model_key: str | None = None,
        compiler_workdir: str | None = None,
        compiler_args: str | Mapping[str, str] | None = None,
        max_workers: int | None = None,
    ) -> NxDModel:
        """Combine all traces in one model, with weights as they are."""
        if priority_model_key is not None or not isinstance(compiler_args, str | None):
            raise NotImplementedError("the stand-in has one set of arguments and no priority")
        if not self.trace_artifacts_collection:
            raise ValueError("No traces available for compilation. Call trace() first.")
        model = NxDModel(world_size=self.world_size)
        for tag, artifacts in self.trace_artifacts_collection.items():
            made = functions.compile(artifacts.hlo, artifacts.metaneff, compiler_workdir, compiler_args, tag)
            model.add(tag, artifacts, made)
        return model


def _parameters(model: nn.Module) -> dict[str, bool]:
    """The model's parameters, name to whether it is required; *args and **kwargs are refused."""
    parameters = inspect.signature(model.forward).parameters.values()
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in parameters):
        raise NotImplementedError("Methods with *args or **kwargs are not supported.")
    if any(parameter.default not in (parameter.empty, None) for parameter in parameters):
        raise ValueError("Only None is allowed as a default value for parameters.")
    return {parameter.name: parameter.default is parameter.empty for parameter in parameters}


def _reassigned(module: nn.Module, before: Mapping[str, Tensor], outputs: list[Tensor]) -> dict[str, int]:
    """The buffers that were reassigned, whose new tensors are added to the outputs."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    after = {**parameters, **dict(module.named_buffers(remove_duplicate=False))}
    states = {}
    for name, tensor in before.items():
        if after[name] is tensor:
            continue
        if name in parameters:
            raise CompileError(f"states must be buffers: got the parameter {name}")
        if (after[name].shape, after[name].dtype) != (tensor.shape, tensor.dtype):
            raise CompileError(f"states must keep shape and dtype: got another {name}")
        states[name] = len(outputs)
        outputs.append(after[name])
    return states
