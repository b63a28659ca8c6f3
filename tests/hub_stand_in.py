"""
The part of the Hugging Face hub's HTTP interface that pushing and loading a decoder meets.

It keeps repositories in memory: every file in git, none in large file storage. The real client talks to it.
"""

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from huggingface_hub import constants, utils

Files = dict[str, bytes]

# Name since version 1. One client is created per configuration.
forget_client: Callable[[], None] = getattr(utils, "close_session", None) or utils.reset_sessions


class Hub:
    """Repositories and recorded requests."""

    def __init__(self) -> None:
        self.branches: dict[str, dict[str, str]] = {}
        """Repository to branch to commit."""

        self.commits: dict[str, Files] = {}
        self.messages: list[str] = []
        self.tokens: set[str | None] = set()
        """Recorded requests."""

        self.private: dict[str, str] = {}
        """Repository to its required token."""

        self.downloads: list[str] = []

    def files(self, repository: str, branch: str = "main") -> Files:
        """Files of a branch."""
        return self.commits[self.branches[repository][branch]]

    def commit(self, repository: str, files: Files, branch: str = "main") -> str:
        """Replace the branch's files by *files*."""
        text = repr((repository, branch, len(self.commits), sorted(files)))
        name = hashlib.sha1(text.encode()).hexdigest()
        self.commits[name] = files
        self.branches.setdefault(repository, {})[branch] = name
        return name

    def change(self, repository: str, branch: str, lines: list[dict[str, object]]) -> str:
        """Apply the lines of a commit."""
        files = dict(self.files(repository, branch))
        for line in lines:
            value = line["value"]
            assert isinstance(value, dict)
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
            else:
                assert "file" == line["key"]
                files[value["path"]] = base64.b64decode(value["content"])
        return self.commit(repository, files, branch)


class _MissingError(Exception):
    """An error with the code that the client expects."""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *arguments: object) -> None:
        """Silence the log."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        token = (self.headers.get("authorization") or "").removeprefix("Bearer ") or None
        self.hub.tokens.add(token)
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        try:
            if parts[0] == "api":
                self._send(json.dumps(self._api(parts[1:], body, token)).encode())
            else:
                self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]), token)
        except _MissingError as missing:
            self._send(b"{}", {"X-Error-Code": str(missing)}, status=404)

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, body: bytes, headers: dict[str, str] | None = None, status: int = 200) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _api(self, parts: list[str], body: bytes, token: str | None) -> object:
        hub = self.hub
        if parts == ["validate-yaml"]:
            return {"errors": [], "warnings": []}
        if parts == ["repos", "create"]:
            facts = json.loads(body)
            name = "/".join(filter(None, (facts["organization"], facts["name"])))
            if name not in hub.branches:
                hub.commit(name, {".gitattributes": b""})
                if facts.get("visibility") == "private" or facts.get("private"):
                    hub.private[name] = str(token)
            return {"url": f"http://{self.headers['Host']}/{name}"}
        assert "models" == parts[0]
        repository, rest = "/".join(parts[1:3]), parts[3:]
        if rest[:1] == ["branch"]:
            start = hub.branches[repository]["main"]
            hub.branches[repository].setdefault(rest[1], start)
            return {}
        sha = self._commit(repository, rest[1] if len(rest) > 1 else "main", token)
        if rest[:1] == ["preupload"]:
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]
            return {"files": modes}
        if rest[:1] == ["commit"]:
            sha = hub.change(repository, rest[1], [json.loads(line) for line in body.splitlines()])
            address = f"http://{self.headers['Host']}/{repository}/commit/{sha}"
            return {"commitUrl": address, "commitOid": sha}
        files = hub.commits[sha]
        if rest[:1] == ["tree"]:
            return [
                {"type": "file", "path": path, "size": len(content), "oid": _etag(content)}
                for path, content in files.items()
            ]
        assert rest[:1] in ([], ["revision"])
        return {"id": repository, "sha": sha, "siblings": [{"rfilename": path} for path in files]}

    def _file(self, repository: str, revision: str, path: str, token: str | None) -> None:
        sha = self._commit(repository, revision, token)
        if path not in self.hub.commits[sha]:
            raise _MissingError("EntryNotFound")
        content = self.hub.commits[sha][path]
        if self.command == "GET":
            self.hub.downloads.append(path)
        self._send(content, {"X-Repo-Commit": sha, "ETag": f'"{_etag(content)}"'})

    def _commit(self, repository: str, revision: str, token: str | None) -> str:
        hub = self.hub
        if repository not in hub.branches or hub.private.get(repository, token) != token:
            raise _MissingError("RepoNotFound")
        if revision in hub.commits:
            return revision
        if revision not in hub.branches[repository]:
            raise _MissingError("RevisionNotFound")
        return hub.branches[repository][revision]


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextlib.contextmanager
def running_hub(patch: pytest.MonkeyPatch, cache: Path) -> Iterator[Hub]:
    """Run a local hub that replaces the real one for the client, with an empty *cache*."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, address)
    patch.setattr(constants, "ENDPOINT", address)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(huggingface_hub.hf_api.api, "endpoint", address)
    forget_client()
    try:
        yield hub
    finally:
        forget_client()
        server.shutdown()
        server.server_close()
        thread.join()
