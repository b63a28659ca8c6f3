"""
Generator replicas behind Ray Serve.

`Ray Serve <https://docs.ray.io/en/latest/serve/index.html>`_ starts replicas, assigns
cores, routes requests, scales and restarts. It is optional,
``pip install "decodekit[ray]"``, and is imported when an application is made.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ..decoding.generator import Generator
from ..decoding.results.events import AsyncEventStream, Event
from ..decoding.results.logprobs import Logprobs
from ..decoding.validation import is_whole
from .event_queue import merged
from .generation_service import Events, GenerationService, service_of
from .sse import async_server_sent_events

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.requests import Request
    from starlette.responses import Response

_MOST_ONGOING = 1000
"""Requests that a replica has at a time unless told otherwise, waiting ones included."""


def serve_app(
    build: Callable[[], Generator],
    *,
    neuron_cores: int = 0,
    num_replicas: int | str | None = None,
    max_ongoing_requests: int | None = None,
    autoscaling_config: Any = None,
    **options: Any,
) -> "Application":
    """
    Make an application for ``ray.serve.run``, with a :class:`Replica` per generator.

    Args:
        build: Makes the generator. Called in the replica's process, where only the replica's cores
            are visible: compile or load the decoder in it, and import nothing of Neuron before.
            Ray pickles the function, not its result.

        neuron_cores: NeuronCores per replica. Ray reserves them and sets
            ``NEURON_RT_VISIBLE_CORES`` in the replica. 0 for a generator that needs none.

        num_replicas: Number of replicas or ``"auto"``. None is one, or as in *autoscaling_config*.

        max_ongoing_requests: Requests that Ray sends a replica at a time; further ones wait at Ray. As many
            prompts run as the decoder has rows, and the other ones of the replica wait in it. None leaves
            the number to the decoder: Ray sends up to 1000.

        autoscaling_config: As in Ray Serve, such as ``{"min_replicas": 1, "max_replicas":
            8, "target_ongoing_requests": 4}`` for a decoder of 4 rows.

        options: Further arguments of ``ray.serve.deployment``: ``name``, ``ray_actor_options``,
            ``max_queued_requests``, ``graceful_shutdown_timeout_s``, ...

    Raises:
        ImportError: Ray Serve is not installed.

        TypeError: *build* is not callable, or an option is unknown to Ray.

        ValueError: *neuron_cores* is invalid or given twice, or Ray refuses an option.
    """
    serve = _ray_serve()
    if not callable(build):
        raise TypeError(f"'build' must be callable and make a Generator: got a {type(build).__name__}")
    if not is_whole(neuron_cores) or neuron_cores < 0:
        raise ValueError(f"'neuron_cores' must be a whole number >= 0: got {neuron_cores!r}")
    deployment = serve.deployment(
        num_replicas=num_replicas,
        max_ongoing_requests=_MOST_ONGOING if max_ongoing_requests is None else max_ongoing_requests,
        autoscaling_config=autoscaling_config,
        ray_actor_options=_with_cores(options.pop("ray_actor_options", None) or {}, neuron_cores),
        **options,
    )
    app: Application = deployment(Replica).bind(build)
    return app


class Replica:
    """
    A generator that answers requests from Python handles and over HTTP.

    Through a handle, with *prompts*, *random_streams* and *logprobs* of :meth:`Generator.stream
    <decodekit.decoding.generator.Generator.stream>`::

        handle = serve.run(serve_app(build))
        for event in handle.options(stream=True).stream.remote("def f("): ...
        rows = handle.generate.remote("def f(").result()

    Over HTTP it takes a POST of a JSON object: ``prompt``, a text, ids, or a list of either;
    ``stream``, whether to send events as they happen; ``random_streams``, as for the generator; and
    ``logprobs``, the fields of :class:`~decodekit.decoding.results.logprobs.Logprobs`, such as
    ``{"top": 5, "stage": "raw"}``. Events are sent as in :mod:`decodekit.streaming.sse`. Without
    ``stream`` the answer is ``{"rows": [...]}``, with each row's events merged into one. An invalid
    request is answered with 400 before anything is decoded.

    Requests share the decoder, each with the generator's parts and a row for each prompt: none changes a
    token of another. Where they cannot (draft trees, parameters with a value for each row, a decoder that
    runs in lockstep with other processes), one request runs at a time.

    Cancelling a request, or disconnecting, ends it within one step. Decoding runs in a thread, so the replica
    stays responsive to Ray during a forward. A replica that is stopped finishes its requests first, as long
    as ``graceful_shutdown_timeout_s`` allows.
    """

    _service: GenerationService | None = None

    def __init__(self, build: Callable[[], Generator]) -> None:
        generator = build()
        if not isinstance(generator, Generator):
            raise TypeError(f"'build' must make a Generator: got a {type(generator).__name__}")
        self._service = service_of(generator)
        self._begin = self._service.begin

    def __del__(self) -> None:
        """Called by Ray when no request is left or their time is over."""
        if self._service is not None:
            self._service.close()

    async def stream(self, prompts: Any, **options: Any) -> AsyncEventStream:
        """Generate, yielding events as they happen."""
        async with aclosing(await self._begin(prompts, **options)) as events:
            async for event in events:
                yield event

    async def generate(self, prompts: Any, **options: Any) -> list[Event]:
        """Generate until every row has ended; returns each row's events merged into one."""
        return await _added_up(await self._begin(prompts, **options))

    async def __call__(self, request: "Request") -> "Response":
        """Answer an HTTP request."""
        from starlette.responses import JSONResponse, Response

        from .starlette_responses import EventStreamResponse

        if request.method != "POST":
            return JSONResponse({"error": "POST a JSON object with a 'prompt'"}, 405, {"Allow": "POST"})
        try:
            prompt, stream, options = _read(await request.body())
            events = await self._begin(prompt, **options)
        except (TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)
        if not stream:
            rows = [row.as_dict() for row in await _added_up(events)]
            # A finish may hold any object.
            return Response(json.dumps({"rows": rows}, default=repr), media_type="application/json")
        return EventStreamResponse(async_server_sent_events(events), events)


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise ImportError('replicas need Ray Serve: pip install "decodekit[ray]"') from error
    return serve


def _with_cores(actor_options: Mapping[str, Any], neuron_cores: int) -> dict[str, Any]:
    """Actor options with the cores added to the resources."""
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
    """Parse a request: prompt, whether to stream, and options."""
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


async def _added_up(events: Events) -> list[Event]:
    """Each row's events, merged into one event."""
    rows: dict[int, list[Event]] = {}
    async with aclosing(events):
        async for event in events:
            rows.setdefault(event.row, []).append(event)
    return [merged(rows[row]) for row in sorted(rows)]
