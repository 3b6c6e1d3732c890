"""The status page under /ui: files, sign-in, JSON and server-sent events. Reads the store and the snapshots of the last
decisions; never asks the API server for anything and never changes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from string import Template
from typing import Any, Protocol

from aiohttp import web

from pagefleet_contract.names import KIND
from pagefleet_operator.domain.status.observation import Observation
from pagefleet_operator.domain.status.status import Status
from pagefleet_operator.web import view
from pagefleet_operator.web.session import COOKIE, LASTS_SECONDS, Sessions
from pagefleet_operator.web.snapshot import Snapshot, taken

STATIC = Path(__file__).parent / "static"
MAX_VIEWERS = 64
TOGETHER_SECONDS = 0.5  # changes within this time are sent as one
QUIET_SECONDS = 10.0
ROWS_AT_ONCE = 50  # rows made before the event loop runs again
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
REFUSAL = '<p class="bad" role="alert">This is not the token.</p>'
OPEN = {"/ui/login", "/ui/static/style.css", "/ui/static/icon.svg"}
Key = tuple[str, str]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Objects(Protocol):
    """The part of `kube.store.Store` that the page reads."""

    def find(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None: ...

    def names(self, kind: str) -> list[Key]: ...


class Viewer:
    """An open page, with the services whose changes it has not been sent yet."""

    def __init__(self) -> None:
        self.due: set[Key] = set()
        self.wake = asyncio.Event()
        self.sent: dict[str, dict[str, Any]] = {}
        self.closed = False

    def note(self, key: Key) -> None:
        self.due.add(key)
        self.wake.set()


class StatusPage:
    """Serves the page. `leads` returns whether this operator decides; only the leader has numbers of pods. After `quiet` seconds
    without a change a stream of the fleet says that it lives, and a service's page is sent again: its numbers grow old."""

    def __init__(
        self, store: Objects, token_file: Path, leads: Callable[[], bool], quiet: float = QUIET_SECONDS
    ) -> None:
        self._store, self._leads, self._sessions, self._quiet = store, leads, Sessions(token_file), quiet
        self._login = Template((STATIC / "login.html").read_text())
        self._snapshots: dict[Key, Snapshot] = {}
        self._rows: dict[Key, tuple[object, Snapshot | None, dict[str, Any]]] = {}
        self._viewers: set[Viewer] = set()

    def routes(self, app: web.Application) -> None:
        for path, handler in (
            ("/ui", self._home),
            ("/ui/", self._index),
            ("/ui/login", self._sign_in_page),
            ("/ui/static/{name}", self._file),
            ("/ui/api/services", self._services),
            ("/ui/api/services/{namespace}/{name}", self._service),
            ("/ui/events", self._events),
        ):
            app.router.add_get(path, self._guarded(handler))
        app.router.add_post("/ui/login", self._guarded(self._sign_in))
        app.on_shutdown.append(self._close)

    def decided(self, observation: Observation, status: Status, now: float) -> None:
        """Record a decision that was taken at `now` and written."""
        key = (observation.namespace, observation.name)
        self._snapshots[key] = taken(self._snapshots.get(key), observation, status, now)
        self.changed(key)

    def changed(self, key: Key) -> None:
        """Note that a service has changed or was deleted."""
        if self._store.find(KIND, *key) is None:
            self._snapshots.pop(key, None)
            self._rows.pop(key, None)
        for viewer in self._viewers:
            viewer.note(key)

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            if not self._sessions.token():
                raise web.HTTPNotFound(reason="The status page is off: no token is mounted")
            if not self._known(request) and request.path not in OPEN:
                if request.path == "/ui/":
                    return self._found("login")
                return web.json_response({"error": "sign in, or send the bearer token"}, status=401, headers=HEADERS)
            response = await handler(request)
            if not response.prepared:
                response.headers.update(HEADERS)
                response.headers.setdefault("Cache-Control", "no-store")
            return response

        return guarded

    def _known(self, request: web.Request) -> bool:
        authorization, cookie = request.headers.get("Authorization", ""), request.cookies.get(COOKIE, "")
        return self._sessions.allows(authorization, cookie, time.time())

    def _found(self, where: str) -> web.Response:
        """A relative redirect: the page may be behind a proxy's path."""
        return web.Response(status=303, headers={"Location": where, "Cache-Control": "no-store", **HEADERS})

    async def _home(self, _: web.Request) -> web.StreamResponse:
        return self._found("ui/")

    async def _index(self, _: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    def _form(self, refusal: str, *, status: int = 200) -> web.Response:
        return web.Response(text=self._login.substitute(refusal=refusal), status=status, content_type="text/html")

    async def _sign_in_page(self, _: web.Request) -> web.StreamResponse:
        return self._form("")

    async def _sign_in(self, request: web.Request) -> web.StreamResponse:
        given = (await request.post()).get("token", "")
        if not isinstance(given, str) or not self._sessions.matches(given.strip()):
            await asyncio.sleep(TOGETHER_SECONDS)  # slows down guessing
            return self._form(REFUSAL, status=403)
        response = self._found("./")
        # The cookie has no path: the browser uses the folder that it sees, also behind a proxy.
        response.headers["Set-Cookie"] = (
            f"{COOKIE}={self._sessions.cookie(time.time())}; Max-Age={LASTS_SECONDS}; HttpOnly; SameSite=Strict"
            + ("; Secure" if request.secure else "")
        )
        return response

    async def _file(self, request: web.Request) -> web.StreamResponse:
        file = STATIC / request.match_info["name"]
        if file.parent != STATIC or not file.is_file() or file.suffix not in (".js", ".css", ".svg"):
            raise web.HTTPNotFound()
        return web.FileResponse(file, headers={"Cache-Control": "no-cache"})

    async def _services(self, _: web.Request) -> web.StreamResponse:
        response = web.json_response({"leads": self._leads(), "rows": await self._all_rows()})
        response.enable_compression()
        return response

    async def _service(self, request: web.Request) -> web.StreamResponse:
        found = self._page((request.match_info["namespace"], request.match_info["name"]))
        if found is None:
            return web.json_response({"error": "there is no such InferenceService"}, status=404)
        return web.json_response(found)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """`rows` (all at first, then the changed), `gone`, and with ?service=namespace/name `service`."""
        if len(self._viewers) >= MAX_VIEWERS:
            return web.json_response({"error": f"{MAX_VIEWERS} pages are open already"}, status=503)
        namespace, _, name = request.query.get("service", "").partition("/")
        watched = (namespace, name) if name else None
        headers = {
            **HEADERS,
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
        }
        response, viewer = web.StreamResponse(headers=headers), Viewer()
        await response.prepare(request)
        self._viewers.add(viewer)
        try:
            with contextlib.suppress(ConnectionError):
                if watched is None:
                    await _send(response, "fleet", {"leads": self._leads(), "rows": await self._all_rows()})
                else:
                    viewer.note(watched)
                # An expired cookie or a changed token ends the stream; the browser then receives a 401.
                while not viewer.closed and self._known(request):
                    await self._tell(response, viewer, watched)
        finally:
            self._viewers.discard(viewer)
        return response

    async def _tell(self, response: web.StreamResponse, viewer: Viewer, watched: Key | None) -> None:
        """Wait for changes and send them. Send something after a while without any, so that dead connections are noticed."""
        try:
            async with asyncio.timeout(self._quiet):
                await viewer.wake.wait()
        except TimeoutError:
            if watched is None:
                await response.write(b": still here\n\n")
                return
            viewer.note(watched)
        due, viewer.due = viewer.due, set()
        viewer.wake.clear()
        if watched is not None:
            if watched in due:
                await _send(response, "service", self._page(watched) or {"gone": True})
        else:
            changed = [row for key in sorted(due) if (row := self._row(key)) is not None]
            fresh = [row for row in changed if viewer.sent.get(_name(row)) != row]
            viewer.sent.update((_name(row), row) for row in fresh)
            gone = ["/".join(key) for key in due if self._store.find(KIND, *key) is None]
            if fresh or gone:
                await _send(response, "rows", {"leads": self._leads(), "rows": fresh, "gone": gone})
        await asyncio.sleep(TOGETHER_SECONDS)

    async def _all_rows(self) -> list[dict[str, Any]]:
        rows = []
        for count, key in enumerate(self._store.names(KIND)):
            if count % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                await asyncio.sleep(0)
            if (found := self._row(key)) is not None:
                rows.append(found)
        return rows

    def _row(self, key: Key) -> dict[str, Any] | None:
        document, snapshot = self._store.find(KIND, *key), self._snapshots.get(key)
        if document is None:
            return None
        cached = self._rows.get(key)
        if cached is None or cached[0] is not document or cached[1] is not snapshot:
            cached = self._rows[key] = (document, snapshot, view.row(document, snapshot))
        return cached[2]

    def _page(self, key: Key) -> dict[str, Any] | None:
        document = self._store.find(KIND, *key)
        if document is None:
            return None
        return {**view.page(document, self._snapshots.get(key), time.time()), "leads": self._leads()}

    async def _close(self, _: web.Application) -> None:
        for viewer in self._viewers:
            viewer.closed = True
            viewer.wake.set()


def _name(row: dict[str, Any]) -> str:
    return f"{row['namespace']}/{row['name']}"


async def _send(response: web.StreamResponse, event: str, data: object) -> None:
    await response.write(f"event: {event}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode())
