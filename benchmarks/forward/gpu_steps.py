"""Steps that the GPU benchmark times: decodekit's, transformers', a plain loop's, and reads of the memory."""

import copy
import time
from collections.abc import Callable
from typing import Any

import attrs
import torch
import transformers

from ...decoding import History, Sample
from ...decoding.sampling import noise
from ...neuron_backend import CudaTarget, StaticDecoder
from ...neuron_backend.kv_cache.shapes import decoder_shape
from ...neuron_backend.models.cache_argument import cache_argument
from ...neuron_backend.models.weights import copy_sharing_weights
from ...neuron_backend.quantization.quantized import quantize
from ...processors import RepetitionPenalty, Temperature, TopK, TopP
from ..peers.plain_llama import PlainLlama

CHAIN = RepetitionPenalty(1.1) | Temperature(0.8) | TopK(50) | TopP(0.95)

# Repeated over every weight: drawing billions of numbers would take longest.
_TILE = 2**20


@attrs.frozen
class Setting:
    """The device, the model and the sizes of the measurement."""

    target: CudaTarget
    device: torch.device
    dtype: torch.dtype
    weights: str | None
    shape: dict[str, int]
    positions: int
    """Tokens before a timed step."""

    in_a_row: int
    rounds: int
    backend: str
    """The ``torch.compile`` back-end of the peers."""

    probe_bytes: int
    sampling_batch: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]

    def wait(self) -> None:
        """Wait until the device has finished."""
        self.target.runtime.wait(self.device)


def seconds_in_turns(setting: Setting, runs: dict[str, Callable[[], Any]]) -> dict[str, list[float]]:
    """Seconds of a warm call, a number a round; the runs take turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(setting.rounds):
        for name, run in runs.items():
            setting.wait()
            start = time.perf_counter()
            for _ in range(setting.in_a_row):
                run()
            setting.wait()
            times[name].append((time.perf_counter() - start) / setting.in_a_row)
    return times


def bandwidth(setting: Setting) -> dict[str, float]:
    """Bytes a second of a copy (read and written) and of a sum (read)."""
    source = torch.ones(setting.probe_bytes // 4, device=setting.device)
    copied = torch.empty_like(source)
    times = seconds_in_turns(setting, {"copy": lambda: copied.copy_(source), "read": lambda: source.sum()})
    moved = {"copy": 2 * source.nbytes, "read": source.nbytes}
    return {name: moved[name] / min(spent) for name, spent in times.items()}


def random_model(setting: Setting, **changes: int) -> Any:
    """A Llama of random weights on the host."""
    sizes: dict[str, Any] = {**setting.shape, **changes}
    config = transformers.LlamaConfig(**sizes, bos_token_id=None, eos_token_id=None)
    with torch.device("meta"):
        model: Any = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=setting.dtype
        )
    generator = torch.Generator().manual_seed(0)
    tile = (0.02 * torch.randn(_TILE, generator=generator)).to(setting.dtype)
    rotary = type(model.model.rotary_emb)(config=config)
    model = model.to_empty(device="cpu").eval()
    model.model.rotary_emb = rotary
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            flat = parameter.view(-1)
            for start in range(0, len(flat), _TILE):
                flat[start : start + _TILE] = tile[: len(flat) - start]
            if "norm" in name:
                parameter.fill_(1)
    return model


def sampling_decoder(setting: Setting, model: Any, batch_size: int, positions: int) -> StaticDecoder:
    """A decoder of one width and one span that samples; unchecked, since the weights are random."""
    model = copy_sharing_weights(model)
    if setting.weights is not None:
        quantize(model, setting.weights)
    length = positions + 8
    shape = decoder_shape(
        model.config,
        vocab_size=model.config.vocab_size,
        batch_size=batch_size,
        max_length=length,
        widths=(1,),
    )
    decoder = StaticDecoder.unchecked(model, shape, spans=(length,))
    decoder.fuse(CHAIN, Sample(seed=7))
    assert decoder.fusion is not None
    setting.target.record(decoder)
    return decoder


def logits_step(decoder: StaticDecoder, positions: int) -> Callable[[], Any]:
    """A step that copies its logits to the host."""
    batch_size = decoder.shape.batch_size
    ids, start = torch.ones(batch_size, 1, dtype=torch.int64), torch.full((batch_size,), positions)
    return lambda: decoder.forward(ids, start)


def sampling_step(decoder: StaticDecoder, positions: int) -> Callable[[], Any]:
    """A step that copies its tokens to the host; noise and history are part of it."""
    shape = decoder.shape
    generator = torch.Generator().manual_seed(1)
    written = torch.randint(
        shape.vocab_size, (shape.batch_size, 1, shape.max_length + 1), generator=generator
    )
    length = torch.full((shape.batch_size, 1), positions + 1)
    random_streams = noise.random_streams(torch.arange(shape.batch_size), 7)
    history = History(written, length, torch.full((shape.batch_size,), 1), random_streams)
    ids = written[:, 0, positions : positions + 1].contiguous()
    start = torch.full((shape.batch_size,), positions)
    return lambda: decoder.forward_and_sample(ids, start, history)


def graph_step(setting: Setting, decoder: StaticDecoder) -> Callable[[], Any]:
    """The recorded graph alone, nothing copied."""
    program: Any = decoder.programs[1]
    (recorded,) = program.replays.values()

    def once() -> None:
        recorded()
        setting.wait()

    return once


def set_position(cache: Any, position: int) -> None:
    """
    Have transformers' static *cache* write the next token into slot *position*.

    Since transformers 5.24 its layers count what they were given, and ignore ``cache_position``.
    """
    counters = [layer.cumulative_length for layer in cache.layers if hasattr(layer, "cumulative_length")]
    if counters:
        # Two kernels for all layers; a fill of each layer would be as many kernels in the peer's time.
        torch._foreach_zero_(counters)
        torch._foreach_add_(counters, position)


def peer_steps(setting: Setting, model: Any, positions: int) -> dict[str, Callable[[], Any]]:
    """A step of transformers and one of the plain loop; both keep the token on the device."""
    # Moving a module moves its parameters in place, which others share.
    moved = copy.deepcopy(model).to(setting.device)
    ids = torch.ones(1, 1, dtype=torch.int64, device=setting.device)
    position = torch.tensor([positions], device=setting.device)
    cache = transformers.StaticCache(config=moved.config, max_cache_len=positions + 8)
    given = {cache_argument(moved): cache}
    plain = PlainLlama(moved, 1, positions + 8)

    def stock(ids: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        output = moved(
            input_ids=ids,
            position_ids=position[None],
            cache_position=position,
            **given,
            use_cache=True,
        )
        next_ids: torch.Tensor = output.logits[:, -1].argmax(dim=-1, keepdim=True)
        return next_ids

    # The static cache allocates its buffers at the first forward, which must not be compiled.
    with torch.no_grad():
        set_position(cache, positions)
        stock(ids, position)

    def compiled(
        step: Callable[..., torch.Tensor], prepare: Callable[[], None] = lambda: None
    ) -> Callable[[], torch.Tensor]:
        if setting.backend == "inductor":
            fast = torch.compile(step, fullgraph=True, mode="reduce-overhead")
        else:
            fast = torch.compile(step, fullgraph=True, backend=setting.backend)

        def once() -> torch.Tensor:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                prepare()
                return fast(ids, position)

        return once

    return {
        "transformers, static cache": compiled(stock, lambda: set_position(cache, positions)),
        "plain loop": compiled(plain.step),
    }
