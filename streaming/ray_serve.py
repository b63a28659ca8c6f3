"""
Replicas of a generator behind Ray Serve.

`Ray Serve <https://docs.ray.io/en/latest/serve/index.html>`_ starts them, places them on the
machines' cores, routes requests, scales and restarts. It is optional,
``pip install "decodekit[ray]"``, and is imported when an application is made.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ..decoding.generator import Generator
from ..decoding.results.background import in_threads
from ..decoding.results.events import AsyncEventStream, Event
from ..decoding.results.logprobs import Logprobs
from ..decoding.validation import is_whole
from .event_queue import merged
from .sse import async_server_sent_events

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.requests import Request
    from starlette.responses import Response


def serve_app(
    build: Callable[[], Generator],
    *,
    neuron_cores: int = 0,
    num_replicas: int | str | None = None,
    max_ongoing_requests: int = 1,
    autoscaling_config: Any = None,
    **options: Any,
) -> "Application":
    """
    An application for ``ray.serve.run``: replicas of a generator, each a :class:`Replica`.

    Args:
        build: Makes the generator. It is called in the replica's own process, where the cores
            that the replica was given are the only ones to be seen; so a decoder is compiled or
            loaded in it, and nothing of Neuron's is imported before. Ray pickles the function,
            not what it makes.

        neuron_cores: NeuronCores of each replica. Ray reserves them and names them to the
            replica in ``NEURON_RT_VISIBLE_CORES``. 0 for a generator that needs none.

        num_replicas: How many, or ``"auto"``. None is one, or what *autoscaling_config* says.

        max_ongoing_requests: Requests that a replica takes before the earlier are answered; the
            others wait. A decoder has one cache: above 1, generations take turns round by round,
            and each turn feeds its row again. That is right, and slow.

        autoscaling_config: As Ray Serve takes it, such as ``{"min_replicas": 1, "max_replicas":
            8, "target_ongoing_requests": 1}``.

        options: Any others of ``ray.serve.deployment``: ``name``, ``ray_actor_options``,
            ``max_queued_requests``, ``graceful_shutdown_timeout_s``, ...

    Raises:
        ImportError: Ray Serve is not installed.

        TypeError: *build* cannot be called, or Ray knows no such option.

        ValueError: *neuron_cores* is no number of cores, or given twice; or Ray refuses an option.
    """
    serve = _ray_serve()
    if not callable(build):
        raise TypeError(f"'build' must be callable and make a Generator: got a {type(build).__name__}")
    if not is_whole(neuron_cores) or neuron_cores < 0:
        raise ValueError(f"'neuron_cores' must be a whole number >= 0: got {neuron_cores!r}")
    deployment = serve.deployment(
        num_replicas=num_replicas,
        max_ongoing_requests=max_ongoing_requests,
        autoscaling_config=autoscaling_config,
        ray_actor_options=_with_cores(options.pop("ray_actor_options", None) or {}, neuron_cores),
        **options,
    )
    app: Application = deployment(Replica).bind(build)
    return app


class Replica:
    """
    A generator that answers requests, of Python through a handle and of others over HTTP.

    Through a handle, with the arguments of :meth:`Generator.stream
    <decodekit.decoding.generator.Generator.stream>`::

        handle = serve.run(serve_app(build))
        for event in handle.options(stream=True).stream.remote("def f("): ...
        rows = handle.generate.remote("def f(").result()

    Over HTTP it takes a POST of a JSON object: ``prompt``, a text, ids, or several of either;
    ``stream``, whether to send events as they happen; ``random_streams``, as in a call of the generator;
    and ``logprobs``, the fields of :class:`~decodekit.decoding.results.logprobs.Logprobs`, such as
    ``{"top": 5, "stage": "raw"}``. Events come as :mod:`decodekit.streaming.sse` has them. Without
    ``stream`` the answer is ``{"rows": [...]}``, each row's events added up to one. What cannot be
    generated from is answered with 400 before anything is decoded.

    A request that is cancelled, or whose client is gone, stops decoding within one step. Decoding
    happens in threads: however long a forward takes, Ray can talk to the replica.
    """

    def __init__(self, build: Callable[[], Generator]) -> None:
        self._generator = build()
        if not isinstance(self._generator, Generator):
            raise TypeError(f"'build' must make a Generator: got a {type(self._generator).__name__}")

    async def stream(self, prompts: Any, **options: Any) -> AsyncEventStream:
        """Generate event by event."""
        async with aclosing(await self._begin(prompts, **options)) as events:
            async for event in events:
                yield event

    async def generate(self, prompts: Any, **options: Any) -> list[Event]:
        """Generate until every row has ended: each row's events added up to one."""
        return await _added_up(await self._begin(prompts, **options))

    async def __call__(self, request: "Request") -> "Response":
        """Answer an HTTP request."""
        from starlette.responses import JSONResponse, StreamingResponse

        if request.method != "POST":
            return JSONResponse({"error": "POST a JSON object with a 'prompt'"}, 405, {"Allow": "POST"})
        try:
            prompt, stream, options = _read(await request.body())
            events = await self._begin(prompt, **options)
        except (TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)
        if not stream:
            return JSONResponse({"rows": [row.as_dict() for row in await _added_up(events)]})
        # Neither caches nor nginx may hold back what is to be seen at once.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        body = async_server_sent_events(events)
        return StreamingResponse(body, headers=headers, media_type="text/event-stream")

    async def _begin(self, prompts: Any, **options: Any) -> AsyncEventStream:
        """The events to come: everything has been checked, and nothing decoded."""
        # In a thread, since a tokenizer takes its time over a long text.
        return in_threads(await asyncio.to_thread(self._generator.stream, prompts, **options))


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise ImportError('replicas need Ray Serve: pip install "decodekit[ray]"') from error
    return serve


def _with_cores(actor_options: Mapping[str, Any], neuron_cores: int) -> dict[str, Any]:
    """Options of the replica's actor, with the cores among its resources."""
    resources = dict(actor_options.get("resources") or {})
    if neuron_cores:
        if "neuron_cores" in resources:
            raise ValueError(
                f"'neuron_cores' must be given once: got {neuron_cores} and, in 'ray_actor_options', "
                f"{resources['neuron_cores']}"
            )
        resources["neuron_cores"] = neuron_cores
    return {**actor_options, "resources": resources}


def _read(body: bytes) -> tuple[Any, bool, dict[str, Any]]:
    """Prompt, whether to stream, and the options of a request."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body must be JSON: {error}") from error
    if not isinstance(fields, dict) or "prompt" not in fields:
        raise ValueError("the body must be a JSON object with a 'prompt'")
    prompt, stream = fields.pop("prompt"), fields.pop("stream", False)
    if not isinstance(stream, bool):
        raise TypeError(f"'stream' must be true or false: got {json.dumps(stream)}")
    if unknown := sorted(fields.keys() - {"random_streams", "logprobs"}):
        raise ValueError(
            f"the body must have no other keys than prompt, stream, random_streams, logprobs: got {unknown}"
        )
    if fields.get("logprobs") is not None:
        fields["logprobs"] = _logprobs(fields["logprobs"])
    return prompt, stream, fields


def _logprobs(fields: Any) -> Logprobs:
    if not isinstance(fields, dict) or fields.keys() - {"top", "stage"}:
        raise TypeError(f"'logprobs' must be an object of 'top' and 'stage': got {json.dumps(fields)}")
    return Logprobs(**fields)


async def _added_up(events: AsyncEventStream) -> list[Event]:
    """What each row's events come to, as one event."""
    rows: dict[int, list[Event]] = {}
    async with aclosing(events):
        async for event in events:
            rows.setdefault(event.row, []).append(event)
    return [merged(rows[row]) for row in sorted(rows)]
