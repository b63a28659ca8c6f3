"""Conversion of processors to a vLLM logits processor class."""

import importlib
import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.optional_protocols import NumbersRows
from ...decoding.protocols import Processor
from ...decoding.sampling import noise
from ...decoding.validation import is_whole
from ..chain import Chain
from ..constraints.forced_prefix import ForcedPrefix
from ..grammar.grammar import Grammar
from ..parameter import options_of

_SWITCH = "decodekit"


def to_vllm(chain: Processor, *, name: str = "DecodekitLogitsProcessor", base: type | None = None) -> type:
    """
    Make a class for vLLM's ``logits_processors``, with the interface of its second model runner.

    Define it in a module and pass its qualified name to vLLM::

        # mine.py
        Repetition = to_vllm(DRY(0.8), name="Repetition")

        LLM(model, logits_processors=["mine:Repetition"])

    The chain is fixed for all requests when vLLM starts. A request disables it with
    ``extra_args={"decodekit": False}`` (REST: ``"vllm_xargs"``). A request's ``seed`` selects the
    random stream; a request without one gets its own stream, which differs between runs.

    The chain runs after vLLM's bias, penalties and grammar, and before its temperature and filters,
    with each row's own prefix, draft tokens included. Tokens forbidden before it stay forbidden.

    Args:
        chain: A processor or a chain of them, without per-row parameters and without one that depends on the
            numbers of rows (:class:`~decodekit.decoding.optional_protocols.NumbersRows`).

        name: Name of the class.

        base: Base class; None for
            ``vllm.v1.worker.gpu.sample.logits_processor.LogitsProcessor``.

    Raises:
        ImportError: vLLM is not installed, or too old for that interface.

        TypeError: *chain* is no processor, *name* no string or *base* no class.

        ValueError: A parameter is per-row, or a processor depends on the number of a row; vLLM's rows change
            from step to step.
    """
    if not isinstance(name, str):
        raise TypeError(f"'name' must be a string: got {name!r}")
    if base is not None and not isinstance(base, type):
        raise TypeError(f"'base' must be a class: got {base!r}")
    check_for_requests(chain)
    return type(name, (_Bridge, _interface() if base is None else base), {"chain": staticmethod(chain)})


def check_for_requests(chain: Processor) -> None:
    """
    Refuse a chain that depends on rows, since the rows of vLLM are other requests in each step.

    Raises:
        ValueError: A parameter is per-row, or a processor depends on the number of a row.
    """
    for part in Chain((chain,)).processors:
        if isinstance(part, NumbersRows):
            raise ValueError(
                f"'chain' must not depend on the numbers of rows, which change in vLLM: got {part!r}"
            )
        for name, value in options_of(part).items():
            if _is_per_row(part, value):
                raise ValueError(f"'{name}' must be one for all requests: got {part!r}")


def _is_per_row(part: Processor, value: Any) -> bool:
    # A tuple is per-row in these, and token ids elsewhere.
    return isinstance(value, Tensor) or (
        isinstance(part, Grammar | ForcedPrefix) and isinstance(value, tuple)
    )


def _interface() -> Any:
    try:
        return importlib.import_module("vllm.v1.worker.gpu.sample.logits_processor").LogitsProcessor
    except ImportError as error:
        raise ImportError(
            "to_vllm needs a vLLM with the interface of its second model runner (0.33 has it): "
            "pip install 'vllm>=0.33'; vLLM Neuron 0.2 requires vLLM 0.11 and takes no logits processors "
            "(call attach_to_vllm_neuron in its worker instead)"
        ) from error


class _Bridge:
    """Converts vLLM's request slots and rows to a history."""

    chain: ClassVar[Any]

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        super().__init__(vllm_config, req_states)  # type: ignore[call-arg]  # the base beside this one
        self._states = req_states
        # By request slot, set in add_request.
        self._on = torch.zeros(req_states.max_num_reqs, dtype=torch.bool)
        self._stream = torch.zeros(req_states.max_num_reqs, dtype=torch.int64)
        self._unseeded = itertools.count()

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise if the switch is not a bool."""
        switched_on(sampling_params)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Store the request's settings; returns whether the chain runs for it."""
        self._on[req_idx] = switched_on(sampling_params)
        self._stream[req_idx] = stream_of(sampling_params, self._unseeded)
        return bool(self._on[req_idx])

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Process *logits* ``[rows, vocab]``, which are not modified."""
        # Checked on the host, to avoid a device synchronisation.
        if not self._on[ctx.idx_mapping_np].any():
            return logits
        slots = ctx.expanded_idx_mapping.long()
        on = self._on.to(logits.device)[slots]
        processed: Tensor = self.chain(logits[:, None], self._history(ctx, slots))[:, 0]
        processed = processed.masked_fill(logits == -torch.inf, -torch.inf)
        return torch.where(on[:, None], processed, logits)

    def _history(self, ctx: Any, slots: Tensor) -> History:
        states, position = self._states, ctx.pos.long()
        ids = states.all_token_ids.gpu[slots].long()  # [rows, max length], a copy
        # This step's draft tokens are in no slot yet, but are the inputs of the request's rows. Tokens
        # of later rows are written too, beyond this row's length.
        row, fed = (slots[:, None] == slots).nonzero(as_tuple=True)
        ids[row, position[fed]] = ctx.input_ids.long()[fed]
        return History(
            ids=ids[:, None],
            length=position[:, None] + 1,
            prompt=states.prompt_len.gpu[slots].long(),
            random_stream=self._stream.to(slots.device)[slots],
        )


def stream_of(sampling_params: Any, unseeded: Iterator[int]) -> int:
    """The random stream of a request: that of its seed, or the next of *unseeded*."""
    seed = sampling_params.seed
    # Streams of given seeds and of unseeded requests must not coincide.
    kind, number = (0, next(unseeded)) if seed is None else (1, seed)
    return int(noise.random_streams(torch.tensor([number]), kind)[0])


def switched_on(sampling_params: Any) -> bool:
    """
    Whether a request runs the chain.

    Raises:
        ValueError: The switch is not a bool.
    """
    switch = (sampling_params.extra_args or {}).get(_SWITCH, True)
    # REST requests may carry numbers only.
    if not isinstance(switch, bool) and not (is_whole(switch) and switch in (0, 1)):
        raise ValueError(f"'{_SWITCH}' must be True or False: got {switch!r}")
    return bool(switch)
