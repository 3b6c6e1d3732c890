"""/v1/responses: OpenAI's Responses, with a bounded store in memory for `previous_response_id`."""

from __future__ import annotations

from aiohttp import web

from pagefleet_engine.api.answers import shapes
from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.endpoints.turns import Turns, owner
from pagefleet_engine.api.parameters import body
from pagefleet_engine.api.protocols import response_request
from pagefleet_engine.api.protocols.response_events import ResponseWriter
from pagefleet_engine.api.protocols.store import Store, Stored
from pagefleet_engine.api.protocols.writing import new_id


class Responses:
    """The endpoints of one served model. What one API key stored another one does not see."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._store = turns, Store()

    async def create(self, request: web.Request) -> web.StreamResponse:
        timeout, who = body.timeout(request), owner(request)
        document = await body.document(request)
        before = document.get("previous_response_id") if isinstance(document, dict) else None
        earlier = self._found(who, before, "previous_response_id").items if isinstance(before, str) else ()
        defaults = self._turns.planner.rules.sampling_defaults
        parameters, fields, items = response_request.parameters(document, earlier, defaults)
        name = new_id("resp")
        writer = ResponseWriter(name, response_request.echoed(fields, parameters))

        def finished() -> None:
            if fields["store"]:
                made = writer.document
                items_after = (*items, *made["output"])
                # A conversation repeats the one before it, so its size counts each time.
                size = response_request.size_of([made, items_after])
                self._store.add(who, name, Stored(made, items_after, size))

        return await self._turns.answer(request, parameters, timeout, writer, response_request.RENAMED, finished)

    async def get(self, request: web.Request) -> web.Response:
        found = self._found(owner(request), request.match_info["response"], "response_id")
        return shapes.answer(found.document)

    async def items(self, request: web.Request) -> web.Response:
        found = self._found(owner(request), request.match_info["response"], "response_id")
        items = list(found.items[: len(found.items) - len(found.document["output"])])
        return shapes.answer({"object": "list", "data": items, "has_more": False, "first_id": None, "last_id": None})

    async def delete(self, request: web.Request) -> web.Response:
        name = request.match_info["response"]
        self._found(owner(request), name, "response_id")
        self._store.remove(owner(request), name)
        return shapes.answer({"id": name, "object": "response", "deleted": True})

    def _found(self, who: bytes, name: str, param: str) -> Stored:
        """Raises ApiError (404)."""
        found = self._store.get(who, name)
        if found is None:
            message = f"there is no response {name[:80]!r} here; this server stores a bounded number, in memory"
            code = "previous_response_not_found" if param == "previous_response_id" else "response_not_found"
            raise ApiError(404, message, param=param, code=code)
        return found
