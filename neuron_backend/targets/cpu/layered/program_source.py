"""The C++ source of a program: its loops, and a function with the calls of each part and span."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from ...layered.layer_graphs import Source
from ..kernel_calls import Ids
from .memory_plan import ALIGNMENT, Lifetime, MemoryPlan, aligned, plan
from .program_file import ENTRY
from .recorded_calls import Call, Loop, Place, Recording

_INCLUDE = re.compile(r"^\s*#include.*$", re.MULTILINE)
_ONE_LANE = Path(__file__).parent.parent / "csrc" / "one_lane.h"
_FUNCTIONS = re.findall(r"^DECODEKIT_ONE_LANE\((\w+)\)", _ONE_LANE.read_text(), re.MULTILINE)
_SCALAR = re.compile(rf"\bstd::({'|'.join([*_FUNCTIONS, 'pow'])})\(")
_KERNEL = re.compile(r'extern "C"\s+void\s+kernel\(')


@attrs.frozen
class LayerCalls:
    """The calls of one kind of layers."""

    sources: tuple[Source, ...]
    """Of each input."""

    recordings: tuple[Recording, ...]
    """For each span."""


@attrs.frozen
class ProgramCalls:
    """All calls of a program, whose pointers are main's inputs, constants, outputs and the layers' own."""

    main: tuple[Recording, ...]
    """For each span."""

    layers: tuple[LayerCalls, ...] = ()
    """Each kind."""

    kinds: tuple[int, ...] = ()
    """For each layer, which of :attr:`layers`."""

    own: tuple[tuple[int, ...], ...] = ()
    """For each layer, the pointers of its own tensors, in the order of its kind's roles."""

    carried: tuple[int, ...] = ()
    """Bytes of each tensor that layers pass on."""

    ids: int = 0
    """The pointer of the columns' ids."""

    @property
    def reads_ids(self) -> bool:
        """Whether any call is given the ids."""
        return any(Ids() in call.arguments for call in _calls(self))


def program_source(calls: ProgramCalls) -> tuple[str, int]:
    """The source of a program, and the bytes of its temporary memory."""
    loops = list(dict.fromkeys(_loops(calls)))
    names = {loop: f"loop_{number}" for number, loop in enumerate(loops)}
    writer = _Writer(calls, names)
    functions = [*writer.layer_functions(), *writer.main_functions()]
    parts = [
        "#include <array>",
        "#include <exception>",
        "#include <string>",
        *sorted({line.strip() for loop in loops for line in _INCLUDE.findall(loop.source)}),
        _ONE_LANE.read_text(),
        *(_loop(names[loop], loop.source) for loop in loops),
        *_declarations(calls),
        "namespace {",
        *functions,
        "}  // namespace",
        *_entry(len(calls.main)),
    ]
    return "\n".join(parts) + "\n", writer.memory


def _loops(calls: ProgramCalls) -> Iterator[Loop]:
    for call in _calls(calls):
        if isinstance(call.function, Loop):
            yield call.function


def _calls(calls: ProgramCalls) -> Iterator[Call]:
    for recording in (*calls.main, *(each for kind in calls.layers for each in kind.recordings)):
        yield from recording.calls


def _loop(name: str, source: str) -> str:
    body = _KERNEL.sub("static void kernel(", _INCLUDE.sub("", source))
    body = _SCALAR.sub(r"one_lane::\1(", body)
    return f"namespace {name} {{{body}}}"


def _declarations(calls: ProgramCalls) -> Iterator[str]:
    """Declarations of the own kernels."""
    own = {call.function: call.arguments for call in _calls(calls) if isinstance(call.function, str)}
    for function, arguments in sorted(own.items()):
        if function != "layers":
            yield f'extern "C" void {function}({", ".join(map(_type, arguments))});'


def _type(argument: Any) -> str:
    if argument is None or isinstance(argument, Place | Ids):
        return "const void*"
    if isinstance(argument, tuple):
        return "const int64_t*"
    return "double" if isinstance(argument, float) else "int64_t"


def _entry(spans: int) -> Iterator[str]:
    yield f'extern "C" const char* {ENTRY}(int64_t span, char* const* tensors, char* memory) try {{'
    for number in range(spans):
        yield f"  if (span == {number}) main_{number}(tensors, memory);"
    yield "  return nullptr;"
    yield "} catch (const std::exception& error) {"
    yield "  static thread_local std::string message;"
    yield "  message = error.what();"
    yield "  return message.c_str();"
    yield "}"


class _Writer:
    """Writes functions over one block of temporary memory."""

    def __init__(self, calls: ProgramCalls, names: Mapping[Loop, str]):
        self._calls, self._names = calls, names
        self._plans = [_plan(recording) for recording in calls.main]
        # The layers' memory lies behind main's: what is passed on, twice, and what a layer uses.
        self._layers_at = max(own.size for own in self._plans)
        self._carried_at = [0, *self._running_sizes()]
        inside = [_plan(recording).size for kind in calls.layers for recording in kind.recordings]
        self.memory = max(1, self._layers_at + 2 * self._carried_at[-1] + max(inside, default=0))

    def _running_sizes(self) -> Iterator[int]:
        total = 0
        for size in self._calls.carried:
            total += aligned(size)
            yield total

    def layer_functions(self) -> Iterator[str]:
        """One function for each kind and span."""
        for kind, layer in enumerate(self._calls.layers):
            own = [source.role for source in layer.sources if source.kind == "own"]
            inputs = [_input(source, own) for source in layer.sources]
            for span, recording in enumerate(layer.recordings):
                yield f"void layer_{kind}_{span}(char* const* in, char* const* out, char* const* shared,"
                yield "    char* const* own, const char* ids, char* memory) {"
                yield from self._body(
                    recording, _plan(recording), inputs, [f"out[{n}]" for n in range(len(recording.outputs))]
                )
                yield "}"

    def main_functions(self) -> Iterator[str]:
        """One function for each span."""
        if self._calls.layers:
            yield from self._tables()
        for span, (recording, memory) in enumerate(zip(self._calls.main, self._plans, strict=True)):
            inputs = [f"tensors[{number}]" for number in range(recording.inputs)]
            outputs = [f"tensors[{len(inputs) + number}]" for number in range(len(recording.outputs))]
            yield f"void main_{span}(char* const* tensors, char* memory) {{"
            yield f"  const char* const ids = tensors[{self._calls.ids}];"
            yield from self._body(recording, memory, inputs, outputs, span)
            yield "}"

    def _tables(self) -> Iterator[str]:
        rows = ", ".join("{" + ", ".join(map(str, row)) + "}" for row in self._calls.own)
        widest = max(1, *(len(row) for row in self._calls.own))
        count = len(self._calls.own)
        yield f"constexpr int KIND[{count}] = {{{', '.join(map(str, self._calls.kinds))}}};"
        yield f"constexpr int OWN[{count}][{widest}] = {{{rows}}};"

    def _body(
        self,
        recording: Recording,
        memory: MemoryPlan,
        inputs: Sequence[str],
        outputs: Sequence[str],
        span: int = 0,
    ) -> Iterator[str]:
        pointers = dict(enumerate(inputs))
        pointers |= dict(zip(recording.outputs, outputs, strict=True))
        pointers |= {key: f"memory + {offset}" for key, offset in memory.offsets.items()}
        for key, content in recording.constants.items():
            pointers[key] = f"((char*)constant_{key})"
            numbers = ", ".join(map(str, content))
            yield f"  alignas({ALIGNMENT}) static const unsigned char constant_{key}[] = {{{numbers}}};"
        for call in recording.calls:
            if call.function == "layers":
                yield from self._layers(call, pointers, span)
            elif isinstance(call.function, Loop):
                arguments = [
                    f"({kind})({_value(argument, pointers)})"
                    for kind, argument in zip(call.function.types, call.arguments, strict=True)
                ]
                yield f"  {self._names[call.function]}::kernel({', '.join(arguments)});"
            else:
                yield f"  {call.function}({', '.join(_value(each, pointers) for each in call.arguments)});"

    def _layers(self, call: Call, pointers: Mapping[int, str], span: int) -> Iterator[str]:
        first, shared, last = (", ".join(_value(each, pointers) for each in part) for part in call.arguments)
        block = f"memory + {self._layers_at}"
        size = self._carried_at[-1]
        turns = [
            ", ".join(f"{block} + {turn * size + offset}" for offset in self._carried_at[:-1])
            for turn in (0, 1)
        ]
        functions = ", ".join(f"layer_{kind}_{span}" for kind in range(len(self._calls.layers)))
        count, carried, widest = (
            len(self._calls.own),
            len(self._calls.carried),
            max(map(len, self._calls.own)),
        )
        yield f"""  {{
    using Layer = void (*)(char* const*, char* const*, char* const*, char* const*, const char*, char*);
    constexpr Layer layers[] = {{{functions}}};
    char* const first[] = {{{first}}};
    char* const last[] = {{{last}}};
    char* const shared[] = {{{shared or "nullptr"}}};
    char* const turns[2][{carried}] = {{{{{turns[0]}}}, {{{turns[1]}}}}};
    for (int layer = 0; layer < {count}; ++layer) {{
      char* own[{max(1, widest)}];
      for (int i = 0; i < {widest}; ++i) own[i] = tensors[OWN[layer][i]];
      char* const* const in = layer == 0 ? first : turns[layer % 2];
      char* const* const out = layer == {count - 1} ? last : turns[(layer + 1) % 2];
      layers[KIND[layer]](in, out, shared, own, ids, {block} + {2 * size});
    }}
  }}"""


def _plan(recording: Recording) -> MemoryPlan:
    """Offsets of all memory but the inputs and outputs."""
    uses: dict[int, list[int]] = {}
    for number, call in enumerate(recording.calls):
        for place in _places(call.arguments):
            uses.setdefault(place.memory, []).append(number)
    given = {*range(recording.inputs), *recording.outputs, *recording.constants}
    return plan(
        {
            memory: Lifetime(recording.sizes[memory], min(numbers), max(numbers))
            for memory, numbers in uses.items()
            if memory not in given
        }
    )


def _places(arguments: Sequence[Any]) -> Iterator[Place]:
    for argument in arguments:
        if isinstance(argument, Place):
            yield argument
        elif isinstance(argument, tuple):
            yield from _places(argument)


def _input(source: Source, own: Sequence[str]) -> str:
    if source.kind == "own":
        return f"own[{own.index(source.role)}]"
    return f"{'in' if source.kind == 'carried' else 'shared'}[{source.number}]"


def _value(argument: Any, pointers: Mapping[int, str]) -> str:
    if isinstance(argument, Place):
        return f"{pointers[argument.memory]} + {argument.offset}"
    if argument is None:
        return "nullptr"
    if isinstance(argument, Ids):
        return "ids"
    if isinstance(argument, tuple):
        return f"std::array<int64_t, {len(argument)}>{{{', '.join(map(str, argument))}}}.data()"
    if isinstance(argument, float):
        # Every bit: a decimal number might be another.
        return argument.hex() if argument == argument and abs(argument) != float("inf") else repr(argument)
    return str(argument)
