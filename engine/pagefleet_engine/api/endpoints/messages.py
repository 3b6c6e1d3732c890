"""/v1/messages and /v1/messages/count_tokens: Anthropic's Messages."""

from __future__ import annotations

from aiohttp import web

from pagefleet_engine.api.answers import shapes
from pagefleet_engine.api.backend.models import Models
from pagefleet_engine.api.endpoints.turns import Turns
from pagefleet_engine.api.parameters import body
from pagefleet_engine.api.planning import prompts
from pagefleet_engine.api.protocols import message_request
from pagefleet_engine.api.protocols.message_events import MessageWriter
from pagefleet_engine.api.protocols.writing import new_id


class Messages:
    """Both endpoints of one served model."""

    def __init__(self, turns: Turns, models: Models) -> None:
        self._turns, self._models = turns, models

    async def create(self, request: web.Request) -> web.StreamResponse:
        timeout = body.timeout(request)
        defaults = self._turns.planner.rules.sampling_defaults
        parameters = message_request.parameters(await body.document(request), defaults)
        writer = MessageWriter(new_id("msg"), parameters.model)
        return await self._turns.answer(request, parameters, timeout, writer, message_request.RENAMED)

    async def count_tokens(self, request: web.Request) -> web.Response:
        parameters = message_request.counted(await body.document(request))
        self._models.adapter(parameters.model)
        conversation = parameters.conversation
        if conversation is None:
            raise RuntimeError("a message is a conversation")
        tokens, _ = await prompts.chat_tokens(self._turns.tokenizer, conversation)
        return shapes.answer({"input_tokens": len(tokens)})
