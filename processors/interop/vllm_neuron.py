"""A chain in vLLM Neuron, whose runner samples on the host."""

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from ...decoding.history import History
from ...decoding.protocols import Processor
from .vllm_export import check_for_requests, stream_of, switched_on


def attach_to_vllm_neuron(runner: Any, chain: Processor) -> None:
    """
    Run a chain in vLLM Neuron's sampling on the host.

    vLLM Neuron 0.2 makes its input batch without logits processors, so those given to ``LLM`` are not run.
    Its host sampler runs those of the input batch, to which this adds one. Call it in a worker::

        # mine.py
        class Worker(NeuronWorker):
            def load_model(self):
                super().load_model()
                attach_to_vllm_neuron(self.model_runner, DRY(0.8))

        LLM(model, worker_cls="mine.Worker", additional_config={
            "override_neuron_config": {"on_device_sampling_config": None}})

    The chain runs before vLLM's penalties, temperature and filters, with each request's own tokens. A
    request disables it as under :func:`~.vllm_export.to_vllm`, and its ``seed`` selects the random stream.

    Args:
        runner: The worker's ``model_runner``, with its model loaded.

        chain: As for :func:`~.vllm_export.to_vllm`.

    Raises:
        TypeError: *chain* is no processor.

        ValueError: A parameter is per-row or a processor depends on the number of a row, or the runner
            samples on the device or speculates there, so that it never has logits.

    Sources: vllm-project/vllm-neuron a5ef7c8, ``worker/neuronx_distributed_model_runner.py``
    (``__init__``, ``_sample``, ``_cpu_sample``); vLLM 0.11, ``v1/worker/gpu_input_batch.py``.
    """
    check_for_requests(chain)
    if runner.model is None:
        raise ValueError("'runner' must have its model: call attach_to_vllm_neuron after load_model()")
    if runner.speculative_config is not None:
        raise ValueError(
            "'runner' must not speculate: vLLM Neuron drafts, verifies and samples in one fused program, "
            "which returns tokens; leave out speculative_config, or decode with decodekit over "
            "NeuronX Distributed Inference"
        )
    if runner.model.neuron_config.on_device_sampling_config is not None:
        raise ValueError(
            "'runner' must sample on the host: its programs were compiled with on-device sampling and return "
            "tokens; compile them again with additional_config={'override_neuron_config': "
            "{'on_device_sampling_config': None}}"
        )
    runner.input_batch.logitsprocs.non_argmax_invariant.append(_BatchProcessor(chain))


@attrs.frozen(eq=False)
class _Request:
    """What one row of the batch holds."""

    prompt: list[int]
    output: list[int]
    """The runner's own list, which grows."""

    stream: int
    on: bool


@attrs.define(eq=False)
class _BatchProcessor:
    """The interface of vLLM's first model runner: rows that requests enter, leave and change."""

    chain: Callable[[Tensor, History], Tensor]

    _rows: dict[int, _Request] = attrs.field(factory=dict, init=False)
    _unseeded: "itertools.count[int]" = attrs.field(factory=itertools.count, init=False)

    def is_argmax_invariant(self) -> bool:
        """False: vLLM must call it for greedy requests too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow the changes of the batch, in the order that vLLM prescribes."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, prompt, output in batch_update.added:
            if prompt is None:
                raise ValueError("a prompt must have token ids for a chain: got embeddings")
            stream = stream_of(params, self._unseeded)
            self._rows[row] = _Request(prompt, output, stream, switched_on(params))
        for start, end, direction in batch_update.moved:
            moved, replaced = self._rows.pop(start, None), self._rows.pop(end, None)
            if moved is not None:
                self._rows[end] = moved
            if replaced is not None and direction.name == "SWAP":
                self._rows[start] = replaced

    def apply(self, logits: Tensor) -> Tensor:
        """Process *logits* ``[rows, vocab]``, which are not modified."""
        requests = [self._rows[row] for row in range(len(logits))]
        if not any(request.on for request in requests):
            return logits
        on = torch.tensor([request.on for request in requests], device=logits.device)
        history = _history(requests, logits.device)
        processed: Tensor = self.chain(logits[:, None], history)[:, 0]
        # What vLLM has forbidden stays forbidden.
        processed = processed.masked_fill(logits == -torch.inf, -torch.inf)
        return torch.where(on[:, None], processed, logits)


def _history(requests: list[_Request], device: torch.device) -> History:
    """The tokens of each request."""
    texts = [request.prompt + request.output for request in requests]
    ids = torch.zeros(len(texts), 1, max(map(len, texts)), dtype=torch.int64)
    for row, text in enumerate(texts):
        ids[row, 0, : len(text)] = torch.tensor(text)
    return History(
        ids=ids.to(device),
        length=torch.tensor([[len(text)] for text in texts], device=device),
        prompt=torch.tensor([len(request.prompt) for request in requests], device=device),
        random_stream=torch.tensor([request.stream for request in requests], device=device),
    )
