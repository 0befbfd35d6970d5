"""The dashboard's addresses: pages, static files, JSON, downloads. Read-only.

Nothing is kept per viewer. Static files are read once, at the start, and looked up by name.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Hashable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from defl.cards import NAME_CHARACTERS_MAX
from defl.dashboard.guard import Guard, Guarded
from defl.dashboard.shared_answers import Busy, SharedAnswers
from defl.dashboard.source import Download, Source
from defl.errors import DeflError
from defl.printable import printable

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
PAGES = ("/", "/rounds", "/rounds/{number}", "/members", "/node", "/nodes", "/log")
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
OTHER_TYPE = "text/plain; charset=utf-8"  # licences
DOWNLOAD_TYPES = {".json": "application/json", ".toml": "text/plain; charset=utf-8"}

VERSION_CHARACTERS_MAX = 200
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
_SAFE_NAME = re.compile(r"[\w.-]{1,255}", re.ASCII)

# Models are made in memory: one at a time, and a few more wait.
DOWNLOADS_PREPARED_MAX = 1
DOWNLOADS_WAITING_MAX = 8
PIECE_BYTES = 2**18


def make_app(source: Source, guard: Guard) -> ASGIApp:
    return Guarded(Dashboard(source).app, guard)


class Dashboard:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._static = _static_files()
        self._answers = SharedAnswers()
        self._preparing = asyncio.Semaphore(DOWNLOADS_PREPARED_MAX)
        self._prepared_or_waiting = 0
        self.app = Starlette(
            routes=[
                *(Route(path, self._page) for path in PAGES),
                Route("/static/{name:path}", self._static_file),
                Route("/api/overview", self._overview),
                Route("/api/rounds", self._rounds),
                Route("/api/rounds/{number}", self._round),
                Route("/api/node", self._facts),
                Route("/files/{node:path}/{name}", self._file),
            ],
            exception_handlers={
                DeflError: _unavailable,
                OSError: _unavailable,
                Busy: _busy,
            },
        )
        self.app.router.redirect_slashes = False

    # --- Pages and static files -----------------------------------------------------------------

    async def _page(self, request: Request) -> Response:
        if "number" in request.path_params:
            _number(request)
        return self._static_answer(request, INDEX)

    async def _static_file(self, request: Request) -> Response:
        return self._static_answer(request, request.path_params["name"])

    def _static_answer(self, request: Request, name: str) -> Response:
        file = self._static.get(name)
        if file is None:
            raise HTTPException(404)
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.type)

    # --- JSON -----------------------------------------------------------------------------------

    async def _overview(self, _request: Request) -> Response:
        return await self._json("overview", self._source.overview)

    async def _rounds(self, request: Request) -> Response:
        since = _parameter(request, "since", VERSION_CHARACTERS_MAX) or ""
        return await self._json(("rounds", since), lambda: self._source.rounds(since))

    async def _round(self, request: Request) -> Response:
        number, node = _number(request), _parameter(request, "node", NAME_CHARACTERS_MAX)
        return await self._json(("round", number, node), lambda: self._source.round(number, node))

    async def _facts(self, request: Request) -> Response:
        name = _parameter(request, "name", NAME_CHARACTERS_MAX)
        return await self._json(("facts", name), lambda: self._source.facts(name))

    async def _json(self, key: Hashable, view: Callable[[], msgspec.Struct | None]) -> Response:
        def make() -> bytes | None:
            made = view()
            return None if made is None else msgspec.json.encode(made)

        content = await self._answers.get(key, make)
        if content is None:
            raise HTTPException(404)
        return Response(content, media_type="application/json")

    # --- Downloads ------------------------------------------------------------------------------

    async def _file(self, request: Request) -> Response:
        node, name = request.path_params["node"], request.path_params["name"]
        if len(node) > NAME_CHARACTERS_MAX or not _SAFE_NAME.fullmatch(name):
            raise HTTPException(404)
        if self._prepared_or_waiting >= DOWNLOADS_WAITING_MAX:
            raise Busy
        self._prepared_or_waiting += 1
        try:
            async with self._preparing:
                download = await asyncio.to_thread(self._source.file, node, name)
        finally:
            self._prepared_or_waiting -= 1
        if download is None:
            raise HTTPException(404)
        return _Attachment(download, name)


class _Attachment(StreamingResponse):
    def __init__(self, download: Download, name: str) -> None:
        headers = {
            "Content-Length": str(download.size),
            "Content-Disposition": f'attachment; filename="{name}"',
        }
        kind = DOWNLOAD_TYPES.get(Path(name).suffix, "application/octet-stream")
        super().__init__(self._pieces(), headers=headers, media_type=kind)
        self._file = download.content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)

    async def _pieces(self) -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(self._file.read, PIECE_BYTES):
            yield piece


class _StaticFile(NamedTuple):
    content: bytes
    type: str
    etag: str


def _static_files() -> dict[str, _StaticFile]:
    """By their path below static/."""
    files = {}
    for path in STATIC.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            name = path.relative_to(STATIC).as_posix()
            etag = f'"{sha256(content).hexdigest()[:32]}"'
            files[name] = _StaticFile(content, TYPES.get(path.suffix, OTHER_TYPE), etag)
    return files


# --- Checked parameters --------------------------------------------------------------------------


def _number(request: Request) -> int:
    text = request.path_params["number"]
    if not _NUMBER.fullmatch(text):
        raise HTTPException(404)
    return int(text)


def _parameter(request: Request, name: str, characters_max: int) -> str | None:
    value = request.query_params.get(name)
    if value is not None and len(value) > characters_max:
        raise HTTPException(400, f"{name}: at most {characters_max} characters")
    return value


# --- Errors --------------------------------------------------------------------------------------


def _unavailable(_request: Request, error: Exception) -> Response:
    """A folder that cannot be read now: the page goes on asking."""
    return PlainTextResponse(f"{printable(str(error))}\n", 503)


def _busy(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("Too many requests at once; try again.\n", 503)
