"""What answers the requests of the serving benchmark."""

import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from decodekit.benchmarks.serving.servers import (
    llama_server,
    serve_with_batcher,
    serve_with_llama,
    serve_with_transformers,
)
from decodekit.benchmarks.serving.workload import Arrival
from decodekit.neuron_backend import StaticDecoder

REQUESTS = [Arrival(0.0, (1, 2, 3)), Arrival(0.01, (4, 5)), Arrival(0.0, (6,))]

STAND_IN = '''#!{python}
"""Answers as llama-server does: a piece a token, two tokens in the last one."""
import http.server, json, sys
port = int(sys.argv[sys.argv.index("--port") + 1])

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["prompt"] == [0]:
            self.send_error(400)
            return
        self.send_response(200)
        self.end_headers()
        for _ in range(asked["n_predict"] - 1):
            self.wfile.write(b'data: {{"content":"a","stop":false}}\\n\\n')
        last = b'data: {{"content":"","stop":true,"tokens_predicted":%d}}\\n\\n'
        self.wfile.write(last % asked["n_predict"])

http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
'''


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    """A stand-in for llama-server."""
    path = tmp_path / "llama-server"
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("drafts", [False, True])
def test_a_batcher_answers(drafts: bool, tiny_model: object) -> None:
    """Every token has a time."""
    model = tiny_model("llama")  # type: ignore[operator]
    decoder = StaticDecoder(model, batch_size=2, max_length=32, widths=(1, 5, 9))
    found = serve_with_batcher(decoder, REQUESTS, 6, drafts=drafts, max_gap=1.0)

    assert [6, 6, 6] == [len(each.tokens) for each in found]
    assert all(each.sent < each.tokens[0] <= each.tokens[-1] for each in found)


def test_llama_server_answers(binary: Path) -> None:
    """Tokens that came in one piece are counted; a refusal is an error."""
    with llama_server(binary, Path("none.gguf"), 2, 64, 1) as address:
        found = serve_with_llama(address, REQUESTS, 5)
        with pytest.raises(ChildProcessError, match="400"):
            serve_with_llama(address, [Arrival(0.0, (0,))], 5)

    assert [5, 5, 5] == [len(each.tokens) for each in found]


def test_a_server_that_does_not_start_is_named(tmp_path: Path) -> None:
    """With its status and its messages."""
    path = tmp_path / "llama-server"
    path.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    path.chmod(0o755)
    with (
        pytest.raises(ChildProcessError, match="has ended with status 3: no such model"),
        llama_server(path, Path("none.gguf"), 2, 64, 1),
    ):
        pass


@pytest.mark.slow
def test_transformers_answers(tiny_model: object) -> None:
    """With its continuous batching."""
    model = tiny_model("llama", torch.float32)  # type: ignore[operator]

    (rate,) = serve_with_transformers(model, REQUESTS, 4)
    assert rate > 0


class Answers:
    """A model that answers with so many tokens."""

    def __init__(self, *lengths: int) -> None:
        self.lengths = lengths
        self.calls = 0

    def generate_batch(self, ids: object, generation_config: object) -> dict[str, SimpleNamespace]:
        """The answers by request."""
        self.calls += 1
        return {str(i): SimpleNamespace(generated_tokens=[0] * each) for i, each in enumerate(self.lengths)}


def test_transformers_is_warm() -> None:
    """The first round is not counted."""
    model = Answers(4, 4, 4)

    assert 2 == len(serve_with_transformers(model, REQUESTS, 4, 2))
    assert 3 == model.calls


@pytest.mark.parametrize("lengths", [(), (4, 4), (4, 4, 3), (0, 0, 0)])
def test_every_answer_of_transformers_is_needed(lengths: tuple[int, ...]) -> None:
    """A rate of fewer tokens would be no rate of these requests."""
    with pytest.raises(ChildProcessError, match="must answer 3 requests with 4 tokens each"):
        serve_with_transformers(Answers(*lengths), REQUESTS, 4)
