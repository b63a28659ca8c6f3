"""
Stand-in for a GPU: records a program by keeping it, and replays it by running it again.

Mistakes that a real recording would not notice are errors here. A replay must use the memory that the
recording used: a tensor with another address, such as one that was replaced since, is an
error. The host may not read within a program, and no shape may depend on data.
Staging memory is poisoned after every upload, and so is memory that a program writes without
reading it: stale results are NaN. A result that is read without waiting is
detected by the next replay.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from decodekit.neuron_backend.targets.cuda.cuda_runtime import Gpu

_HOST_READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2"}

_POISON = 255
"""Byte with which every float is NaN, and every integer -1."""


class _Watch(TorchDispatchMode):
    """Records the memory that a run reads and writes but has not allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[int, Tensor] = {}
        self.written: dict[int, Tensor] = {}
        self._own: dict[int, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _HOST_READS:
            raise RuntimeError(f"a recorded program must leave the host alone: got {name}")
        inputs = [
            leaf for leaf in torch.utils._pytree.tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)
        ]
        written = inputs[:1] if func._schema.is_mutable else []
        # copy_ does not read its target.
        looked_at = inputs[1:] if name == "copy_" else inputs
        for tensors, into in ((looked_at, self.read), (written, self.written)):
            for tensor in tensors:
                if _address(tensor) not in self._own:
                    into[_address(tensor)] = tensor
        out = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(out):
            is_new = isinstance(leaf, Tensor) and all(_address(leaf) != _address(known) for known in inputs)
            if is_new and _address(leaf) not in self.read | self.written:
                # Kept alive, so that no other tensor gets its address.
                self._own[_address(leaf)] = leaf
        return out


class Recording:
    """A recorded program."""

    def __init__(self, stand_in: "CudaStandIn", run: Callable[[], None]):
        self._stand_in, self._run = stand_in, run
        self._watch = self._watched()

    def __call__(self) -> None:
        """Replay it, over the same memory."""
        stand_in = self._stand_in
        stand_in.replays += 1
        assert not stand_in.waiting, "a program must not begin before the host has waited for the last"
        for address in set(self._watch.written) - set(self._watch.read):
            _poison(self._watch.written[address])
        for block in stand_in.staged:
            _poison(block)
        found = self._watched()
        for kind in ("read", "written"):
            before, now = getattr(self._watch, kind), getattr(found, kind)
            assert set(before) == set(now), f"a replay must find what it {kind} where it was recorded"
        stand_in.waiting = True

    def _watched(self) -> _Watch:
        if self._stand_in.compiled:
            self._run()
            return _Watch()
        with _Watch() as watch:
            self._run()
        return watch


class CudaStandIn:
    """A :class:`~decodekit.neuron_backend.targets.cuda.cuda_runtime.Runtime` on the CPU."""

    def __init__(self, capability: tuple[int, int] = (9, 0), name: str = "stand-in", compiled: bool = False):
        """
        Stand for a GPU of that *capability* and *name*.

        Args:
            capability: Compute capability.

            name: Name of the GPU.

            compiled: Whether programs come from torch.compile, whose memory accesses cannot be watched.
        """
        self._gpu = Gpu(name, capability, "none")
        self.compiled = compiled
        self.staged: list[Tensor] = []
        self.recordings = 0
        self.replays = 0
        self.sealed = False
        """Whether recording is an error."""

        self.waiting = False
        """Whether the last replay was not waited for yet."""

    def lack(self) -> str | None:
        """None, as with a GPU."""
        return None

    def device(self, name: str) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def gpu(self, device: torch.device) -> Gpu:
        """The GPU that it stands for."""
        return self._gpu

    def staging(self, size: int) -> Tensor:
        """Memory that is poisoned until it is written."""
        self.staged.append(torch.full((size,), _POISON, dtype=torch.uint8))
        return self.staged[-1]

    def recorder(self, device: torch.device) -> "CudaStandIn":
        """Itself."""
        return self

    def record(self, run: Callable[[], None]) -> Recording:
        """Warm up, and run again to watch the memory used."""
        assert not self.sealed, "a forward must not record"
        self.recordings += 1
        run()
        return Recording(self, run)

    def wait(self, device: torch.device) -> None:
        """Mark the last replay as waited for."""
        self.waiting = False


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _poison(tensor: Tensor) -> None:
    storage = tensor.untyped_storage()
    torch.empty(0, dtype=torch.uint8).set_(storage).fill_(_POISON)
