"""
Stand-in for the parts of vLLM that :func:`~decodekit.processors.to_vllm` uses, with the same names.

The interface of the second model runner, ``vllm.v1.worker.gpu.sample.logits_processor``, as of
vLLM 0.33: a base class, the state of all request slots, and a step's layout. An
:class:`Engine` lays requests out as its runner does.
"""

import abc
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor


class LogitsProcessor(abc.ABC):
    """The base class of custom processors."""

    def __init__(self, vllm_config: Any, req_states: "LogitsProcRequestState") -> None:
        self.config = vllm_config

    @classmethod  # noqa: B027
    def validate_params(cls, sampling_params: "SamplingParams") -> None:
        """Raise ``ValueError`` for a request that cannot be served."""

    def add_request(self, req_idx: int, sampling_params: "SamplingParams") -> bool:
        """Begin a request in a slot that may have been another's."""
        return True

    def apply_staged_writes(self) -> None:  # noqa: B027
        """Run before each forward."""

    @abc.abstractmethod
    def apply(self, logits: Tensor, ctx: "LogitsContext") -> Tensor:
        """Process ``[rows, vocab]`` float32 logits."""


@attrs.frozen(eq=False)
class SamplingParams:
    """What a request asks for, as far as a processor looks."""

    seed: int | None = None
    extra_args: dict[str, Any] | None = None


@attrs.frozen(eq=False)
class Buffer:
    """A buffer of the runner."""

    gpu: Tensor


@attrs.frozen(eq=False)
class LogitsProcRequestState:
    """The slots of all requests."""

    device: torch.device
    max_num_reqs: int
    vocab_size: int
    all_token_ids: Buffer
    """``[max_num_reqs, max_model_len]`` int32: committed tokens; rubbish behind them."""

    prompt_len: Buffer
    prefill_len: Buffer
    total_len: Buffer


@attrs.frozen(eq=False)
class LogitsContext:
    """The layout of one step: a row for each token to score."""

    idx_mapping_np: np.ndarray[Any, Any]
    expanded_idx_mapping: Tensor
    expanded_local_pos: Tensor
    input_ids: Tensor
    pos: Tensor


class Engine:
    """Slots, and the steps over them."""

    def __init__(self, kind: type, slots: int = 4, capacity: int = 16, vocab: int = 12) -> None:
        def buffer(*shape: int) -> Buffer:
            return Buffer(torch.full(shape, 7, dtype=torch.int32))

        lengths = buffer(slots), buffer(slots), buffer(slots)
        self.states = LogitsProcRequestState(
            torch.device("cpu"), slots, vocab, buffer(slots, capacity), *lengths
        )
        self.kind = kind
        self.processor = kind(None, self.states)

    def add(self, slot: int, prompt: list[int], output: list[int], params: SamplingParams) -> bool:
        """Put a request into a slot: whether the processor is interested."""
        self.kind.validate_params(params)  # type: ignore[attr-defined]
        tokens = [*prompt, *output]
        self.states.all_token_ids.gpu[slot, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        self.states.prompt_len.gpu[slot] = len(prompt)
        self.states.total_len.gpu[slot] = len(tokens)
        interested: bool = self.processor.add_request(slot, params)
        self.processor.apply_staged_writes()
        return interested

    def step(self, drafts: dict[int, list[int]], logits: Tensor) -> Tensor:
        """Process one step in which each slot feeds its last token and its drafted ones."""
        slots, local, fed, positions = [], [], [], []
        for slot, draft in drafts.items():
            total = int(self.states.total_len.gpu[slot])
            last = int(self.states.all_token_ids.gpu[slot, total - 1])
            for offset, token in enumerate([last, *draft]):
                slots.append(slot)
                local.append(offset)
                fed.append(token)
                positions.append(total - 1 + offset)
        context = LogitsContext(
            np.array(list(drafts)),
            *(torch.tensor(column, dtype=torch.int32) for column in (slots, local, fed, positions)),
        )
        processed: Tensor = self.processor.apply(logits, context)
        return processed
