"""/v1/cache/pin and /v1/cache/pins: prompts whose pages stay in the prefix cache for a time, whatever else is computed."""

from __future__ import annotations

import math
import time
from contextlib import aclosing

from aiohttp import web

from pagefleet_engine.api.answers import shapes
from pagefleet_engine.api.answers.generation import Generation
from pagefleet_engine.api.answers.logprobs import Vocabulary
from pagefleet_engine.api.backend.engine import EngineClient, EngineDied
from pagefleet_engine.api.backend.pins import PinnedPrompt, PinnedPrompts, pin_id
from pagefleet_engine.api.base.errors import ApiError, invalid
from pagefleet_engine.api.base.in_thread import run_in_thread
from pagefleet_engine.api.endpoints.turns import owner
from pagefleet_engine.api.observability import traces
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.api.parameters import body, pins
from pagefleet_engine.api.planning.plan import Planner
from pagefleet_engine.api.protocols.writing import Json
from pagefleet_engine.core.messages import Pin
from pagefleet_engine.core.requests import EngineRequest
from pagefleet_engine.model.text.tokenizer import Tokenizer

SHARE_FLAG, TOKENS_FLAG, SECONDS_FLAG = "--max-pinned-pages-share", "--max-pin-tokens", "--max-pin-seconds"


class Pins:
    """The endpoints of one served model. What one API key pinned another one does not see."""

    def __init__(
        self,
        planner: Planner,
        client: EngineClient,
        tokenizer: Tokenizer,
        metrics: Metrics,
        pinned: PinnedPrompts,
        page_size: int,
    ) -> None:
        self._planner, self._client, self._tokenizer, self._metrics = planner, client, tokenizer, metrics
        self._pinned, self._page_size, self._words = pinned, page_size, Vocabulary(tokenizer)

    async def create(self, request: web.Request) -> web.Response:
        """Compute a prompt as a request of one token does, and pin its full pages."""
        arrival, timeout, who = time.monotonic(), body.timeout(request), owner(request)
        asked = pins.pin(await body.document(request), self._planner.rules.sampling_defaults)
        seconds = self._seconds(asked.seconds)
        plan = await self._planner.plan(asked.request, arrival, timeout)
        [prompt] = plan.requests
        pages = self._pages(len(prompt.prompt_token_ids), asked.param)
        name = await run_in_thread(len(prompt.prompt_token_ids), lambda: pin_id(who, prompt, self._page_size))
        generation = Generation(plan, self._client, self._tokenizer, self._words, self._metrics, "pin")
        try:
            # While it is computed its pages are pinned under another name: nothing of it is lost, nor left behind at an error.
            await self._pin(plan.id, prompt, math.inf, asked.param)
            async with aclosing(generation.pieces()) as batches:
                async for _ in batches:
                    pass
            now = time.monotonic()
            tokens = len(prompt.prompt_token_ids)
            pin = PinnedPrompt(name, asked.request.model, tokens, pages, now + seconds)
            pin = self._pinned.add(who, pin, now)
            try:
                await self._pin(name, prompt, pin.until, asked.param)
            except ApiError:
                self._pinned.remove(who, name)
                self._client.unpin(name)
                raise
        finally:
            self._client.unpin(plan.id)
            traces.annotate(request, "pin", plan.id, asked.request.model, generation.usage.prompt, 0)
        return shapes.answer(self._document(pin), generation.usage.prompt, 0)

    async def list(self, request: web.Request) -> web.Response:
        data = [self._document(pin) for pin in self._pinned.list_of(owner(request), time.monotonic())]
        return shapes.answer({"object": "list", "data": data})

    async def delete(self, request: web.Request) -> web.Response:
        who, name = owner(request), request.match_info["pin"]
        if self._pinned.get(who, name, time.monotonic()) is None:
            message = f"there is no pin {name[:80]!r} here; a pin is of one server and ends with it"
            raise ApiError(404, message, param="pin", code="pin_not_found")
        self._pinned.remove(who, name)
        self._client.unpin(name)
        return shapes.answer({"id": name, "object": "cache.pin", "deleted": True})

    def _seconds(self, asked: int | None) -> int:
        most = self._planner.limits.pin_seconds
        if asked is not None and asked > most:
            raise invalid("ttl_seconds", f"ttl_seconds is {asked}, allowed are {most} ({SECONDS_FLAG})")
        return min(pins.DEFAULT_PIN_SECONDS, most) if asked is None else asked

    def _pages(self, tokens: int, param: str) -> int:
        """Return how many pages the prompt fills. Raises ApiError (400, 403)."""
        pages, size = tokens // self._page_size, self._page_size
        pinnable = self._client.stats.pages_pinnable if self._client.stats is not None else 0
        most = self._planner.limits.pin_tokens
        if not pinnable:
            message = f"this server pins nothing ({SHARE_FLAG}, and room for the longest request beside the pins)"
            raise ApiError(403, message, code="pins_not_allowed")
        if not pages:
            raise invalid(param, f"the prompt has {tokens} tokens and fills no page; a page has {size} tokens")
        if most is not None and tokens > most:
            raise invalid(
                param, f"the prompt has {tokens} tokens, pinned can be {most} ({TOKENS_FLAG})", "pin_too_large"
            )
        if pages > pinnable:
            message = f"the prompt fills {pages} pages of {size} tokens, pinned can be {pinnable} ({SHARE_FLAG})"
            raise invalid(param, message, "pin_too_large")
        return pages

    async def _pin(self, name: str, prompt: EngineRequest, until: float, param: str) -> None:
        """Raises ApiError: 409 when there is no room, 503 when the engine has ended."""
        tokens, adapter, salt = prompt.prompt_token_ids, prompt.adapter, prompt.cache_salt
        try:
            error = await self._client.command(lambda number: Pin(number, name, tokens, adapter, salt, until))
        except EngineDied as died:
            raise ApiError(503, str(died), code=died.code, retry_after=5) from died
        if error is not None:
            message = f"{error} ({SHARE_FLAG}); delete a pin, or wait until one ends"
            raise ApiError(409, message, param=param, code="pins_full")

    def _document(self, pin: PinnedPrompt) -> Json:
        left = pin.until - time.monotonic()
        return {
            "id": pin.id,
            "object": "cache.pin",
            "model": pin.model,
            "tokens": pin.tokens,
            "pages": pin.pages,
            "pinned_tokens": pin.pages * self._page_size,
            "expires_at": int(time.time() + left),
        }
