"""Recording of a module as HLO, with the facts needed to run it."""

import collections
import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from decodekit.neuron_backend.lint.hlo_lint import lint_hlo

from .sums import cut_out

_PROTOS = ("proto", "program")

Aliases = Callable[[nn.Module, Mapping[str, Tensor], list[Tensor]], dict[str, int]]
"""Finds which output updates which state, and may add outputs; takes module, tensors and outputs."""


class CompileError(RuntimeError):
    """A graph that neuronx-cc would not compile."""


@attrs.frozen(eq=False)
class Recording:
    """One graph of fixed shapes, without weights."""

    proto: bytes
    """A serialized HloModuleProto, as a compiler gets it."""

    program: bytes
    """The graph that is run: the same without the sums among cores (:mod:`.sums`)."""

    names: list[str]
    """Names of the inputs."""

    inputs: list[tuple[list[int], str]]
    """Shape and dtype of each input."""

    outputs: list[tuple[list[int], str]]
    parameters: list[tuple[str, str]]
    """
    The program's parameters, in order: ``("input", index)``, ``("tensor", name)``, ``("constant", name)``, or
    ``("sum", index)`` for the input that replaces a sum among cores.
    """

    partials: list[int]
    """Outputs that are summed among cores, in order."""

    layouts: dict[str, tuple[list[int], str]]
    """Shape and dtype of each weight and state, by name."""

    states: dict[str, int]
    """Name of a state to the output that updates it."""

    constants: dict[str, Tensor]

    transposed: list[str] = attrs.field(factory=list)
    """Weights that the program takes with their first two dimensions exchanged."""

    @property
    def tensors(self) -> list[str]:
        """The names of the weights and states that the program takes."""
        return [name for kind, name in self.parameters if kind == "tensor"]

    @property
    def text(self) -> str:
        """The HLO as text."""
        import torch_xla.core.xla_builder as xb

        return xb.get_computation_hlo(xb.computation_from_module_proto("graph", self.proto))

    def dump(self) -> bytes:
        """The content to store."""
        facts = attrs.asdict(self, filter=lambda field, _: field.name not in (*_PROTOS, "constants"))
        protos = {
            name: torch.frombuffer(bytearray(getattr(self, name)), dtype=torch.uint8) for name in _PROTOS
        }
        tensors = {**self.constants, **protos}
        return safetensors.torch.save(tensors, {"facts": json.dumps(facts)})

    @classmethod
    def parse(cls, content: bytes) -> "Recording":
        """Read what :meth:`dump` stored."""
        size = int.from_bytes(content[:8], "little")
        facts = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["facts"])
        tensors = safetensors.torch.load(content)
        proto, program = (tensors.pop(name).numpy().tobytes() for name in _PROTOS)
        return cls(proto=proto, program=program, constants=tensors, **facts)


def record(
    module: nn.Module, inputs: Mapping[str, Tensor], aliases: Aliases, by_name: bool = False, **kwargs: Any
) -> Recording:
    """
    Trace *module* on the XLA device, lower its operations, and check them.

    Args:
        module: Copied, so that tracing does not change it.

        inputs: Example inputs by name, in their order.

        aliases: See :data:`Aliases`.

        by_name: Whether inputs are passed by name, or in this order.

        kwargs: Must be empty; unknown options are refused.

    Raises:
        CompileError: An operation ran on the host, depends on data, or is known to be refused.
    """
    assert not kwargs, f"the stand-in knows no {sorted(kwargs)}"
    whole, operations = _recorded(module, inputs, aliases, by_name)
    _lint(whole.text, operations)
    sums = whole.text.count(" all-reduce(")
    if not sums:
        return whole
    with cut_out() as cuts:
        cut, _ = _recorded(module, inputs, aliases, by_name, cuts)
    if len(cut.partials) != sums or " all-reduce(" in attrs.evolve(cut, proto=cut.program).text:
        raise CompileError(f"{sums} sums among cores must be NxD's own: got {len(cut.partials)} of them")
    return attrs.evolve(cut, proto=whole.proto)


def _recorded(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    aliases: Aliases,
    by_name: bool,
    cuts: Sequence[tuple[Tensor, Tensor]] = (),
) -> tuple[Recording, collections.Counter[str]]:
    """The graph, and the number of calls of each operation."""
    import torch_xla

    device = torch_xla.device()
    twin = copy.deepcopy(module).to(device)
    tensors = dict(_tensors(twin))
    versions = {name: tensor._version for name, tensor in tensors.items()}
    given = [tensor.to(device) for tensor in inputs.values()]
    try:
        with torch.no_grad(), _watched() as operations:
            # By name if they have one, since inputs in between may have been left out.
            result = twin(**dict(zip(inputs, given, strict=True))) if by_name else twin(*given)
        outputs = [result] if isinstance(result, Tensor) else list(result)
        _refuse_writes(tensors, versions)
        states = aliases(twin, tensors, outputs)
        return _lower(tensors, given, inputs, outputs, states, cuts), operations
    finally:
        _forget(twin)


def _forget(module: nn.Module) -> None:
    """
    Drop the tensors recorded into buffers.

    While referenced, they are computed with the device's next run, which a sum among cores cannot be.
    """
    for part in module.modules():
        part._buffers.clear()


@contextmanager
def _watched() -> Iterator[collections.Counter[str]]:
    """Count operations while the body runs; all must only be recorded, not run."""
    import torch_xla
    import torch_xla.debug.metrics as metrics

    # Moving tensors to the device is a computation too; finish it before counting.
    torch_xla.sync(wait=True)
    metrics.clear_all()
    with _Operations() as mode:
        yield mode.called
    fallen_back = [name for name in metrics.counter_names() if name.startswith("aten::")]
    if fallen_back:
        raise CompileError(f"no XLA lowering for {', '.join(fallen_back)}")
    if metrics.metric_data("ExecuteTime") or metrics.metric_data("CompileTime"):
        raise CompileError(
            "the module looked at a value while it was traced: a shape or a branch depends on data"
        )


class _Operations(TorchDispatchMode):
    """Counts calls: torch_xla lowers top-k and argmax to what torch_neuronx has custom calls for."""

    def __init__(self) -> None:
        super().__init__()
        self.called: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _refuse_writes(tensors: Mapping[str, Tensor], versions: Mapping[str, int]) -> None:
    written = [name for name, tensor in tensors.items() if tensor._version != versions[name]]
    if written:
        raise CompileError(
            f"tensors must be updated out of place: got a write in place into {', '.join(written)}"
        )


def _lower(
    tensors: Mapping[str, Tensor],
    given: list[Tensor],
    inputs: Mapping[str, Tensor],
    outputs: list[Tensor],
    states: dict[str, int],
    cuts: Sequence[tuple[Tensor, Tensor]],
) -> Recording:
    from torch_xla import _XLAC

    first = len(outputs)
    outputs = [*outputs, *(partial for partial, _ in cuts)]
    context = _XLAC.lowering.LoweringContext("graph")
    context.build(outputs)
    found: dict[int, tuple[str, str]] = {}
    totals = {index: total for index, (_, total) in enumerate(cuts)}
    for kind, named in (("input", dict(enumerate(given))), ("tensor", tensors), ("sum", totals)):
        for name, tensor in named.items():
            # -1 if the graph does not use it; tied tensors have the first of their names.
            found.setdefault(context.tensor_parameter_id(tensor), (kind, str(name)))
    found.pop(-1, None)
    constants = {}
    for index, tensor in context.device_parameter_id_tensor_mapping().items():
        if index not in found:
            found[index] = ("constant", f"constant_{index}")
            constants[f"constant_{index}"] = tensor.cpu()
    unused = [name for name in states if ("tensor", name) not in found.values()]
    if unused:
        raise CompileError(f"states must be read by the graph: got {', '.join(unused)}")
    return Recording(
        proto=context.hlo(),
        program=context.hlo(),
        names=list(inputs),
        inputs=[(list(tensor.shape), str(tensor.dtype)) for tensor in inputs.values()],
        outputs=[(list(tensor.shape), str(tensor.dtype)) for tensor in outputs],
        parameters=[found[index] for index in range(len(found))],
        partials=list(range(first, len(outputs))),
        layouts={
            name: (list(tensors[name].shape), str(tensors[name].dtype))
            for kind, name in found.values()
            if kind == "tensor"
        },
        states=states,
        constants=constants,
    )


def _lint(text: str, operations: collections.Counter[str]) -> None:
    findings = lint_hlo(text)
    # torch_neuronx lowers these to its own custom calls.
    spared = {"sort": operations["topk"], "variadic-reduce": operations["argmax"] + operations["argmin"]}
    for rule, count in spared.items():
        if sum(finding.rule == rule for finding in findings) == count:
            findings = [finding for finding in findings if finding.rule != rule]
    if findings:
        raise CompileError("; ".join(map(str, findings)))
