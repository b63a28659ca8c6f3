"""Recording of compilations, to show that none happens while a benchmark measures."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def recorded_compilations() -> Iterator[list[str]]:
    """A list that receives a name for every graph traced and every program compiled inside."""
    import torch._dynamo.convert_frame
    import torch._inductor

    found: list[str] = []

    def recorded(original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        found.append(original.__name__)
        return original(*args, **options)

    places = ((torch._inductor, "aoti_compile_and_package"), (torch._dynamo.convert_frame, "_compile"))
    with contextlib.ExitStack() as stack:
        for module, name in places:
            patched = functools.partial(recorded, getattr(module, name))
            stack.enter_context(mock.patch.object(module, name, patched))
        yield found
