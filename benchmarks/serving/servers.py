"""What answers the requests: a batcher, llama.cpp's server, and transformers' continuous batching."""

import contextlib
import http.client
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from ...decoding import Batcher, Event, Generator, MaxNewTokens
from ...decoding.cache.slots import Slots
from ...neuron_backend import CompiledDecoder
from ...speculation import PromptLookup, SpeculativeGenerator
from .workload import Arrival, Timeline, play

_START_SECONDS = 60
_SAID = 2000
"""Characters of a server's messages that an error shows."""


@attrs.define
class _Clock:
    """A streamer that notes when tokens come."""

    timeline: Timeline

    def put_event(self, event: Event) -> None:
        """Note the time of its tokens."""
        self.timeline.tokens += [time.perf_counter()] * len(event.ids)

    def end(self) -> None:
        """Nothing more comes."""


def serve_with_batcher(
    decoder: CompiledDecoder, requests: Sequence[Arrival], tokens: int, *, drafts: bool, max_gap: float | None
) -> list[Timeline]:
    """
    Answer with a batcher in this process.

    Args:
        decoder: With as many rows as are decoded at a time.

        requests: In the order of arrival.

        tokens: New tokens of each.

        drafts: Whether prompt lookup drafts.

        max_gap: The batcher's bound.
    """
    Slots.of(decoder).forget()
    # No token ends an answer, so that all have the same length.
    stop = MaxNewTokens(tokens)
    generator = (
        SpeculativeGenerator(decoder, PromptLookup(), stop=stop) if drafts else Generator(decoder, stop=stop)
    )
    with Batcher(decoder, max_gap=max_gap) as batcher:

        def send(request: Arrival, timeline: Timeline) -> None:
            batcher.submit(generator.parts, list(request.ids), streamer=_Clock(timeline)).result()

        return play(requests, send)


def version_of(binary: Path) -> str:
    """What ``llama-server --version`` says, in one line."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return ", ".join((said.stdout + said.stderr).strip().splitlines())


@contextlib.contextmanager
def llama_server(
    binary: Path, model: Path, rows: int, max_length: int, threads: int
) -> Iterator[tuple[str, int]]:
    """
    A running ``llama-server`` with continuous batching; its host and port.

    Raises:
        ChildProcessError: It does not start; with the end of its messages.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binary, "-m", model, "--host", "127.0.0.1", "--port", port, "-np", rows, "--cont-batching"]
    command += ["-c", rows * max_length, "-t", threads, "-tb", threads, "--no-webui"]
    with (
        # A pipe that is not read would stop it.
        tempfile.TemporaryFile() as messages,
        subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=messages) as process,
    ):
        try:
            try:
                _wait_until_healthy(process, port)
            except ChildProcessError as error:
                messages.seek(0)
                said = messages.read().decode(errors="replace")[-_SAID:].strip()
                raise ChildProcessError(f"{error}: {said}") from None
            yield "127.0.0.1", port
        finally:
            process.terminate()


def serve_with_llama(address: tuple[str, int], requests: Sequence[Arrival], tokens: int) -> list[Timeline]:
    """Answer with a running ``llama-server``; arguments as of :func:`serve_with_batcher`."""

    def send(request: Arrival, timeline: Timeline) -> None:
        connection = http.client.HTTPConnection(*address, timeout=600)
        body = {
            "prompt": list(request.ids),
            "n_predict": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise ChildProcessError(f"llama-server answered {answer.status}: {answer.read()!r}")
        final: dict[str, Any] = {}
        for line in answer:
            if line.startswith(b"data: ") and b'"stop":true' not in line:
                timeline.tokens.append(time.perf_counter())
            elif line.startswith(b"data: "):
                final = json.loads(line.removeprefix(b"data: "))
        # A character that takes several tokens comes as one piece.
        missing = int(final["tokens_predicted"]) - len(timeline.tokens)
        timeline.tokens += [timeline.tokens[-1]] * missing
        connection.close()

    return play(requests, send)


def serve_with_transformers(
    model: Any, requests: Sequence[Arrival], tokens: int, rounds: int = 1
) -> list[float]:
    """
    Tokens a second of transformers' ``generate_batch``, all requests at once, round by round.

    A round before them is not counted.

    Raises:
        ChildProcessError: An answer is missing, or has another number of tokens.
    """
    from transformers import GenerationConfig

    config: Any = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0, use_cache=True
    )
    rates = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        answers = model.generate_batch([list(each.ids) for each in requests], generation_config=config)
        spent = time.perf_counter() - begin
        lengths = [len(each.generated_tokens) for each in answers.values()]
        if lengths != [tokens] * len(requests):
            raise ChildProcessError(
                f"generate_batch must answer {len(requests)} requests with {tokens} tokens each: "
                f"got {len(lengths)} answers, {sum(lengths)} tokens"
            )
        rates.append(sum(lengths) / spent)
    return rates[1:]


def _wait_until_healthy(process: "subprocess.Popen[bytes]", port: int) -> None:
    for _ in range(10 * _START_SECONDS):
        if process.poll() is not None:
            raise ChildProcessError(f"llama-server has ended with status {process.returncode}")
        with contextlib.suppress(OSError):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.1)
    raise ChildProcessError(f"llama-server was not ready within {_START_SECONDS} seconds")
