"""
Bodies of requests to Starlette and FastAPI, and answers to those that are refused or fail.

Starlette is optional, ``pip install "decodekit[serve]"``. This module imports it, and is itself imported
where it is used.
"""

from .chat_completion import error_body

try:
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
except ImportError as error:
    raise ImportError('these requests need Starlette: pip install "decodekit[serve]"') from error

LARGEST_BODY = 2**22
"""Bytes of a request."""


async def json_body(request: Request, most: int = LARGEST_BODY) -> bytes:
    """
    The body of a request, which says that it is JSON; it is not parsed.

    Args:
        request: The client's.

        most: Bytes at most.

    Raises:
        HTTPException: It has another content type (415), or more bytes (413).
    """
    # Web pages of others may send forms and plain text here, but no JSON.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "the content type must be application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, f"the body must have at most {most} bytes")
    return bytes(body)


async def refused(request: Request, error: Exception) -> Response:
    """The answer to an ``HTTPException``, in the form of OpenAI's errors."""
    assert isinstance(error, HTTPException)
    return JSONResponse(error_body(error.detail, "invalid_request_error"), error.status_code, error.headers)


async def failed(request: Request, error: Exception) -> Response:
    """The answer where the server itself failed; it says nothing of the cause."""
    return JSONResponse(error_body("the generation failed", "server_error"), 500)
