"""/tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiohttp import web

from pagefleet_engine.api.answers.shapes import answer
from pagefleet_engine.api.backend.models import Models
from pagefleet_engine.api.base.in_thread import run_in_thread
from pagefleet_engine.api.parameters import body, fields, others
from pagefleet_engine.api.planning import prompts
from pagefleet_engine.api.planning.plan import Planner
from pagefleet_engine.model.text.tokenizer import Tokenizer


class Tokens:
    """Both endpoints of one served model."""

    def __init__(self, planner: Planner, tokenizer: Tokenizer, models: Models) -> None:
        self._planner, self._tokenizer, self._models = planner, tokenizer, models

    async def tokenize(self, request: web.Request) -> web.Response:
        asked = others.tokenize(await body.document(request))
        self._check_model(asked.model)
        if asked.conversation is not None:
            self._planner.check_template(asked.conversation)
            ids, _ = await prompts.chat_tokens(self._tokenizer, asked.conversation, asked.add_special_tokens)
        else:
            ids = await prompts.tokens(self._tokenizer, asked.prompt or "", "prompt", asked.add_special_tokens)
        document: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": self._planner.longest(),
            "tokens": ids,
            "token_strs": await run_in_thread(len(ids), lambda: self._texts(ids)) if asked.return_token_strs else None,
        }
        return answer(document)

    async def detokenize(self, request: web.Request) -> web.Response:
        asked = fields.read(await body.document(request), others.DETOKENIZE)
        self._check_model(asked["model"])
        text = await prompts.text(self._tokenizer, asked["tokens"], "tokens")
        return answer({"prompt": text})

    def _texts(self, ids: Sequence[int]) -> list[str]:
        return [self._tokenizer.token_text(token) for token in ids]

    def _check_model(self, model: str | None) -> None:
        if model is not None:
            self._models.adapter(model)
