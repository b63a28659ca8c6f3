"""
The runner of a vLLM Neuron checkout, over a tiny model that computes, and stubs of vLLM 0.11.

The module of the checkout is executed as it is. Stubbed is what it imports: vLLM's input batch and sampler
(after ``vllm/v1/worker/gpu_input_batch.py`` and ``vllm/v1/sample/sampler.py`` of 0.11, the version that
the checkout requires), and two helpers of NeuronX Distributed Inference.
"""

import enum
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace as Bag
from typing import Any

import pytest
import torch
from torch import Tensor

RUNNER = "vllm_neuron/worker/neuronx_distributed_model_runner.py"
VOCAB = 23


class Direction(enum.Enum):
    """As vLLM's."""

    UNIDIRECTIONAL = 0
    SWAP = 1


class LogitsProcessors:
    """The processors of a batch."""

    def __init__(self) -> None:
        self.argmax_invariant: list[Any] = []
        self.non_argmax_invariant: list[Any] = []

    @property
    def all(self) -> list[Any]:
        """Both kinds."""
        return [*self.argmax_invariant, *self.non_argmax_invariant]


class InputBatch:
    """Rows of running requests without gaps; records how it was made."""

    def __init__(self, logitsprocs: LogitsProcessors | None = None, **given: Any) -> None:
        self.given = given
        rows, length = given["max_num_reqs"], given["max_model_len"]
        self.logitsprocs = logitsprocs or LogitsProcessors()
        self.req_ids: list[str] = []
        self.req_id_to_index: dict[str, int] = {}
        self.requests: dict[str, Any] = {}
        self.token_ids_cpu = torch.zeros(rows, length, dtype=torch.int32).numpy()
        self.num_tokens, self.num_tokens_no_spec = [0] * rows, [0] * rows
        self.num_computed_tokens_cpu = [0] * rows
        self.block_table = Bag(append_row=lambda blocks, row: None)
        self._added: list[Any] = []
        self._removed: list[int] = []
        self._moved: list[Any] = []
        self.sampling_metadata = self._metadata()

    def _metadata(self) -> Bag:
        params = [self.requests[name].sampling_params for name in self.req_ids]
        return Bag(logitsprocs=self.logitsprocs, params=params)

    def add_request(self, request: Any) -> None:
        """In the first row that has become free, else behind the others."""
        row = self._removed.pop(0) if self._removed else len(self.req_ids)
        if row == len(self.req_ids):
            self.req_ids.append(request.req_id)
        else:
            self.req_ids[row] = request.req_id
        self.requests[request.req_id], self.req_id_to_index[request.req_id] = request, row
        count = len(request.prompt_token_ids) + len(request.output_token_ids)
        self.num_tokens[row] = self.num_tokens_no_spec[row] = count
        # The output is the request's own list.
        self._added.append((row, request.sampling_params, request.prompt_token_ids, request.output_token_ids))

    def remove_request(self, name: str) -> None:
        """Leave a gap."""
        row = self.req_id_to_index.pop(name, None)
        if row is not None:
            self._removed.append(row)
            self._removed.sort()
            self.requests.pop(name)

    def condense(self) -> None:
        """Move the last requests into the gaps."""
        for gap in self._removed:
            last = max(self.req_id_to_index.values(), default=-1)
            if last > gap:
                name = self.req_ids[last]
                self.req_ids[gap], self.req_id_to_index[name] = name, gap
                self.num_tokens[gap] = self.num_tokens_no_spec[gap] = self.num_tokens[last]
                self._moved.append((last, gap, Direction.UNIDIRECTIONAL))
        del self.req_ids[len(self.req_id_to_index) :]

    def refresh_metadata(self) -> None:
        """Tell the processors."""
        changed = bool(self._added or self._removed or self._moved)
        update = Bag(removed=self._removed, added=self._added, moved=self._moved) if changed else None
        for processor in self.logitsprocs.all:
            processor.update_state(update)
        self._added, self._removed, self._moved = [], [], []
        if changed:
            self.sampling_metadata = self._metadata()


class Sampler:
    """Greedy, after the processors."""

    def __call__(self, logits: Tensor, metadata: Bag) -> Bag:
        """Tokens ``[rows, 1]``."""
        for processor in metadata.logitsprocs.non_argmax_invariant:
            logits = processor.apply(logits)
        return Bag(sampled_token_ids=logits.argmax(dim=-1, keepdim=True), logprobs_tensors=None)


class TinyModel:
    """A contiguous cache of ids; logits from a table, or the largest if *samples* on the device."""

    architecture = "LlamaForCausalLM"

    def __init__(self, samples: bool) -> None:
        config = Bag(global_topk=256) if samples else None
        self.neuron_config = Bag(
            on_device_sampling_config=config,
            is_block_kv_layout=False,
            is_prefix_caching=False,
            chunked_prefill_config=None,
        )
        self.table = 3 * torch.randn(101, VOCAB, generator=torch.Generator().manual_seed(2))
        self.slots = torch.zeros(4, 64, dtype=torch.int64)

    def line(self, ids: Sequence[int]) -> int:
        """The line of the table after *ids*."""
        state = 1
        for token in ids:
            state = (state * 31 + token + 7) % 10007
        return state % len(self.table)

    def __call__(
        self, input_ids: Tensor, position_ids: Tensor, input_block_ids: Tensor, **given: Any
    ) -> Tensor:
        """Logits ``[rows, vocab]`` of the last position, or their largest."""
        self.sampling_params = given["sampling_params"]
        lines = []
        for ids, positions, block in zip(input_ids, position_ids, input_block_ids, strict=True):
            self.slots[block, positions] = ids
            prefix = self.slots[block, : int(positions.max()) + 1].tolist()
            lines.append(self.table[self.line(prefix)])
        logits = torch.stack(lines)
        return logits.argmax(dim=-1) if self.neuron_config.on_device_sampling_config else logits

    def sample(self, logits: Tensor) -> Bag:
        """As the loader's: tokens that have been sampled."""
        return Bag(sampled_token_ids=logits.unsqueeze(-1), logprobs_tensors=None)


def _padded(rows: list[list[int]], pad: int, max_len: int, dtype: Any, device: Any) -> Tensor:
    return torch.tensor([[*row, *[pad] * (max_len - len(row))] for row in rows], dtype=dtype)


def runner_module(checkout: Path, patch: pytest.MonkeyPatch) -> Any:
    """The module of the runner, executed over stubs."""
    stubs: dict[str, dict[str, Any]] = {
        "neuronx_distributed_inference.modules.generation.sampling": {
            "prepare_sampling_params": lambda batch_size, **columns: torch.tensor(
                [
                    [columns[name][row] for name in ("top_k", "top_p", "temperature")]
                    for row in range(batch_size)
                ]
            )
        },
        "neuronx_distributed_inference.modules.padding": {"pad_tensor": None},
        "vllm.config": {"VllmConfig": Bag},
        "vllm.multimodal": {
            "BatchedTensorInputs": Bag,
            "MultiModalKwargs": Bag(as_kwargs=lambda values, device: {}),
        },
        "vllm.multimodal.inputs": {"MultiModalFeatureSpec": Bag, "MultiModalFieldElem": Bag},
        "vllm.sequence": {"IntermediateTensors": Bag},
        "vllm.utils": {"make_tensor_with_pad": _padded},
        "vllm.v1.core.sched.output": dict.fromkeys(
            ("CachedRequestData", "NewRequestData", "SchedulerOutput"), Bag
        ),
        "vllm.v1.kv_cache_interface": dict.fromkeys(
            ("FullAttentionSpec", "KVCacheConfig", "KVCacheSpec"), Bag
        ),
        "vllm.v1.outputs": {
            "EMPTY_MODEL_RUNNER_OUTPUT": None,
            "DraftTokenIds": Bag,
            "ModelRunnerOutput": Bag,
            "SamplerOutput": Bag,
        },
        "vllm.v1.sample.sampler": {"Sampler": Sampler},
        "vllm.v1.worker.gpu_input_batch": {"CachedRequestState": Bag, "InputBatch": InputBatch},
        "vllm.v1.worker.lora_model_runner_mixin": {"LoRAModelRunnerMixin": object},
        "vllm_neuron.worker.constants": {"NEURON_MULTI_MODAL_MODELS": []},
        "vllm_neuron.worker.neuronx_distributed_model_loader": {"get_neuron_model": None},
    }
    for name in stubs:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            patch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
    for name, content in stubs.items():
        sys.modules[name].__dict__.update(content)
    module = types.ModuleType("runner")
    patch.setitem(sys.modules, "runner", module)
    exec(compile((checkout / RUNNER).read_text(), RUNNER, "exec"), module.__dict__)
    return module


class Engine:
    """Requests, and the steps of the real runner over them."""

    def __init__(self, module: Any, samples: bool, speculative: Any = None) -> None:
        self.model = TinyModel(samples)
        module.get_neuron_model = lambda *given, **named: self.model
        config = Bag(
            model_config=Bag(max_model_len=64, get_vocab_size=lambda: VOCAB),
            cache_config=Bag(block_size=64),
            scheduler_config=Bag(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64),
            speculative_config=speculative,
            additional_config={},
            **dict.fromkeys(
                ("lora_config", "load_config", "parallel_config", "observability_config", "device_config")
            ),
        )
        self.runner = module.NeuronxDistributedModelRunner(config, torch.device("cpu"))
        self.texts: dict[str, list[int]] = {}

    def load(self) -> None:
        """Load the model."""
        self.runner.load_model()

    def step(self, new: Any = None, running: Any = (), finished: Any = ()) -> dict[str, int]:
        """A step that prefills *new* ``(name, prompt, params)``, or decodes *running*."""
        requests = [] if new is None else [_new(*new)]
        names = [request.req_id for request in requests] + list(running)
        output = self.runner.execute_model(
            Bag(
                finished_req_ids=set(finished),
                total_num_scheduled_tokens=len(names),
                num_scheduled_tokens=dict.fromkeys(names, 1),
                free_encoder_mm_hashes=[],
                scheduled_new_reqs=requests,
                scheduled_cached_reqs=Bag(
                    req_ids=list(running),
                    num_computed_tokens=[0] * len(running),
                    new_block_ids=[None] * len(running),
                    resumed_from_preemption=[False] * len(running),
                ),
                scheduled_spec_decode_tokens={},
            )
        )
        found = {name: output.sampled_token_ids[row][0] for name, row in output.req_id_to_index.items()}
        for name, token in found.items():
            self.texts.setdefault(name, []).append(token)
        return found


def _new(name: str, prompt: list[int], params: Any) -> Bag:
    return Bag(
        req_id=name,
        prompt_token_ids=prompt,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        block_ids=[[0]],
        num_computed_tokens=0,
        lora_request=None,
    )
