"""
Serve a model in the form of OpenAI's chat completions.

    pip install "decodekit[serve,grammar]"
    python examples/openai_server.py --model MODEL --batch-size 8

As many requests as the decoder has rows run at a time, each with its own chain, sampler and stop. A
client that disconnects ends its request within a step; Ctrl-C finishes what runs. There is no
authentication: the server listens on this machine only, unless --host says otherwise.
"""

import argparse
import asyncio
import contextlib
import pathlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import attrs
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from decodekit.decoding import Batcher, BatcherFullError, Generator, Greedy, MaxNewTokens
from decodekit.decoding.chat import chat_ids
from decodekit.decoding.engine.parts import Parts
from decodekit.pretrained.chat_tokenizer import load_chat_tokenizer
from decodekit.pretrained.from_files import is_saved_decoder
from decodekit.processors.interop.chat_completion_parts import chat_completion_parts
from decodekit.processors.interop.chat_completion_request import ChatCompletionRequest
from decodekit.processors.interop.invalid_request import InvalidRequestError
from decodekit.streaming.chat_completion import ChatCompletion, error_body
from decodekit.streaming.starlette_requests import failed, json_body, refused
from decodekit.streaming.starlette_responses import EventStreamResponse, result_unless_disconnected


@attrs.frozen(eq=False)
class ChatServer:
    """A generator behind HTTP. Of its parts, requests have a chain, a sampler and a stop of their own."""

    generator: Generator
    name: str
    """The model's name, which requests must give."""

    batcher: Batcher

    def app(self) -> Starlette:
        routes = [
            Route("/v1/chat/completions", self.complete, methods=["POST"]),
            Route("/v1/models", self.models),
        ]
        handlers: dict[Any, Any] = {HTTPException: refused, Exception: failed}
        return Starlette(routes=routes, lifespan=self.running, exception_handlers=handlers)

    @contextlib.asynccontextmanager
    async def running(self, app: Starlette) -> AsyncIterator[None]:
        async with self.batcher:
            yield

    async def models(self, http: Request) -> Response:
        model = {"id": self.name, "object": "model", "created": 0, "owned_by": "decodekit"}
        return JSONResponse({"object": "list", "data": [model]})

    async def complete(self, http: Request) -> Response:
        body = await json_body(http)
        try:
            # In a thread: grammars and long texts take time.
            request, parts, prompt = await asyncio.to_thread(self.read, body)
            logprobs = request.requested_logprobs
            handle = self.batcher.submit(parts, prompt, num_samples=request.n, logprobs=logprobs)
        except BatcherFullError as error:
            return JSONResponse(error_body(str(error), "rate_limit_error"), 429)
        except (RecursionError, TypeError, ValueError) as error:
            parameter = error.parameter if isinstance(error, InvalidRequestError) else None
            return JSONResponse(error_body(str(error), "invalid_request_error", parameter), 400)
        completion = ChatCompletion(model=self.name, tokenizer=parts.tokenizer)
        if request.stream:
            messages = completion.server_sent_events(handle, request.n, len(prompt), request.include_usage)
            return EventStreamResponse(messages, handle)
        result = await result_unless_disconnected(handle, http)
        if result is None:
            return Response(status_code=499)
        # In a thread: so do many log-probabilities.
        return await asyncio.to_thread(lambda: JSONResponse(completion.whole(result)))

    def read(self, body: bytes) -> tuple[ChatCompletionRequest, Parts, list[int]]:
        """The request, its parts, and the ids of its prompt."""
        request = ChatCompletionRequest.of_json(body)
        if request.model != self.name:
            raise HTTPException(404, f"the model must be {self.name!r}: got {request.model!r:.200}")
        parts = chat_completion_parts(request, self.generator.parts, self.generator.decoder.shape)
        return request, parts, chat_ids(request.messages, parts.tokenizer)


def check_address(host: str, port: int) -> None:
    """Listen for a moment: an OSError or a ValueError where the server could not."""
    if not 0 <= port < 2**16:
        raise ValueError(f"--port must be 0 to {2**16 - 1}: got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host, port), family=family).close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", required=True, help="a folder, a hub id, a GGUF file or a saved decoder")
    add("--name", help="the model's name in requests (the last part of MODEL)")
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=8000, help="(%(default)s)")
    add("--max-waiting", type=int, default=100, help="requests that wait before others get 429 (%(default)s)")
    add = parser.add_argument_group("decoder, as in compile_decoder").add_argument
    add("--batch-size", type=int, help="requests that run at a time (4, or as it was saved)")
    add("--max-length", type=int, help="positions of each")
    for name in ("--weights", "--dtype", "--target"):
        add(name)
    options = parser.parse_args()

    names = ("batch_size", "max_length", "weights", "dtype", "target")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    # What can be refused before a decoder is compiled, which takes minutes.
    if options.max_waiting < 1:
        parser.error(f"--max-waiting must be at least 1: got {options.max_waiting}")
    try:
        check_address(options.host, options.port)
        saved = is_saved_decoder(options.model)
        if saved and given:
            flag = next(iter(given)).replace("_", "-")
            raise ValueError(f"--{flag} is fixed in a saved decoder: {options.model}")
        tokenizer = load_chat_tokenizer(options.model, saved)
        if not saved:
            given.setdefault("batch_size", 4)
        # Each request has its own; of the model's generation config, the end tokens are left.
        given |= {"processors": None, "sampler": Greedy(), "stop": MaxNewTokens(1)}
        generator = Generator.from_pretrained(options.model, tokenizer=tokenizer, cache=not saved, **given)
    except (ImportError, OSError, ValueError) as error:
        parser.error(str(error))
    batcher = Batcher(generator.decoder, max_waiting=options.max_waiting)
    # Absolute, since "." has no last part.
    server = ChatServer(generator, options.name or pathlib.Path(options.model).absolute().name, batcher)
    uvicorn.run(server.app(), host=options.host, port=options.port)


if __name__ == "__main__":
    main()
