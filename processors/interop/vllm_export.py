"""Processors inside vLLM."""

import importlib
import itertools
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.protocols import Processor
from ...decoding.sampling import noise
from ...decoding.validation import is_whole
from ..chain import Chain
from ..grammar.grammar import Grammar
from ..parameter import options_of

_SWITCH = "decodekit"


def to_vllm(chain: Processor, *, name: str = "DecodekitLogitsProcessor", base: type | None = None) -> type:
    """
    A class for vLLM's ``logits_processors``, in the interface of its second model runner.

    Give it a name in a module of yours and vLLM that name::

        # mine.py
        Repetition = to_vllm(DRY(0.8), name="Repetition")

        LLM(model, logits_processors=["mine:Repetition"])

    vLLM fixes the chain for all requests when it starts. A request switches it off with
    ``extra_args={"decodekit": False}`` (REST: ``"vllm_xargs"``). Its ``seed`` is the random
    stream of processors that draw; a request without one gets a stream of its own, and not the
    same in the next run.

    The chain runs after vLLM's own bias, penalties and grammar, and before its temperature and
    filters, with every row's own prefix, drafted tokens included. What is forbidden before it
    stays forbidden after it.

    Args:
        chain: A processor or a chain of them, with parameters that hold for every row.

        name: The class's name.

        base: The class to derive from, if not vLLM's
            ``vllm.v1.worker.gpu.sample.logits_processor.LogitsProcessor``.

    Raises:
        ImportError: vLLM is not installed, or older than that interface.

        ValueError: A parameter that is one per row: vLLM's rows change from step to step.
    """
    _check_chain(chain)
    return type(name, (_Bridge, _interface() if base is None else base), {"chain": staticmethod(chain)})


def _check_chain(chain: Processor) -> None:
    for part in Chain((chain,)).processors:
        for name, value in options_of(part).items():
            if _is_per_row(part, value):
                raise ValueError(f"'{name}' must be one for all requests: got {part!r}")


def _is_per_row(part: Processor, value: Any) -> bool:
    # Of a grammar a tuple is its rows, of others it is token ids.
    return isinstance(value, Tensor) or (isinstance(part, Grammar) and isinstance(value, tuple))


def _interface() -> Any:
    try:
        return importlib.import_module("vllm.v1.worker.gpu.sample.logits_processor").LogitsProcessor
    except ImportError as error:
        raise ImportError(
            "to_vllm needs a vLLM with the interface of its second model runner (0.33 has it): "
            "pip install 'vllm>=0.33'"
        ) from error


class _Bridge:
    """Turns vLLM's slots and rows into a history."""

    chain: ClassVar[Any]

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        super().__init__(vllm_config, req_states)  # type: ignore[call-arg]  # the base beside this one
        self._states = req_states
        # Kept by slot, set whenever a request takes one.
        self._on = torch.zeros(req_states.max_num_reqs, dtype=torch.bool)
        self._stream = torch.zeros(req_states.max_num_reqs, dtype=torch.int64)
        self._unseeded = itertools.count()

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a switch that is no bool."""
        _switched_on(sampling_params)

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Take the request's settings; whether the chain runs for it."""
        self._on[req_idx] = _switched_on(sampling_params)
        seed = sampling_params.seed
        # A seed of its own is of another kind than a number in a row.
        kind, number = (0, next(self._unseeded)) if seed is None else (1, seed)
        self._stream[req_idx] = noise.random_streams(torch.tensor([number]), kind)[0]
        return bool(self._on[req_idx])

    def apply(self, logits: Tensor, ctx: Any) -> Tensor:
        """Process *logits* ``[rows, vocab]``, which are not modified."""
        # Asked on the host: nobody waits for the device when there is nothing to do.
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
        # What is drafted in this step stands in no slot yet: it is the input of the request's rows.
        # Later rows' tokens are written too, where this row does not look.
        row, fed = (slots[:, None] == slots).nonzero(as_tuple=True)
        ids[row, position[fed]] = ctx.input_ids.long()[fed]
        return History(
            ids=ids[:, None],
            length=position[:, None] + 1,
            prompt=states.prompt_len.gpu[slots].long(),
            random_stream=self._stream.to(slots.device)[slots],
        )


def _switched_on(sampling_params: Any) -> bool:
    switch = (sampling_params.extra_args or {}).get(_SWITCH, True)
    # A REST request may carry numbers alone.
    if not isinstance(switch, bool) and not (is_whole(switch) and switch in (0, 1)):
        raise ValueError(f"'{_SWITCH}' must be True or False: got {switch!r}")
    return bool(switch)
