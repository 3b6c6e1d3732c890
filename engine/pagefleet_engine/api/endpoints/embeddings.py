"""/v1/embeddings: the last layer's hidden states of a text's tokens, pooled as the checkpoint says and scaled to length 1."""

from __future__ import annotations

import base64
import math
import secrets
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import numpy as np
from aiohttp import web

from pagefleet_engine.api.answers import shapes
from pagefleet_engine.api.backend.engine import EngineClient, EngineDied, RequestFailed
from pagefleet_engine.api.backend.models import Models
from pagefleet_engine.api.base.errors import ApiError, invalid
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.api.parameters import body, others
from pagefleet_engine.api.parameters.others import Embedding
from pagefleet_engine.api.planning import prompts
from pagefleet_engine.api.planning.plan import Planner
from pagefleet_engine.core.requests import EngineRequest, Finish, Pooling, SamplingParams
from pagefleet_engine.model.text.pooling import Purpose
from pagefleet_engine.model.text.tokenizer import Tokenizer


class Embeddings:
    """The endpoint of one served model."""

    def __init__(
        self,
        planner: Planner,
        client: EngineClient,
        tokenizer: Tokenizer,
        models: Models,
        metrics: Metrics,
        purpose: Purpose,
    ) -> None:
        self._planner, self._client, self._tokenizer = planner, client, tokenizer
        self._models, self._metrics, self._purpose = models, metrics, purpose

    async def answer(self, request: web.Request) -> web.Response:
        arrival, timeout = time.monotonic(), body.timeout(request)
        asked = others.embedding(await body.document(request))
        vectors, tokens = await self.vectors(asked, arrival, timeout, "input")
        data = [
            {"object": "embedding", "index": index, "embedding": _written(vector, asked.base64)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return shapes.answer({"object": "list", "data": data, "model": asked.model, "usage": usage}, tokens)

    async def vectors(
        self, asked: Embedding, arrival: float, timeout: float | None, param: str
    ) -> tuple[list[tuple[float, ...]], int]:
        """Return the vectors of length 1 in the inputs' order, and the number of their tokens. Raises ApiError."""
        if self._purpose.unsupported:
            raise invalid(
                "model", f"this model has no embeddings here: {self._purpose.unsupported}", "unsupported_model"
            )
        requests = await self._requests(asked, arrival, timeout, param)
        return await self._vectors(requests), sum(len(one.prompt_token_ids) for one in requests)

    async def _requests(
        self, asked: Embedding, arrival: float, timeout: float | None, param: str
    ) -> tuple[EngineRequest, ...]:
        adapter = self._models.adapter(asked.model)
        self._planner.check_priority(asked.priority)
        most = min((seconds for seconds in (asked.timeout, timeout) if seconds is not None), default=None)
        name, requests = f"embd-{secrets.token_hex(12)}", []
        for index, one in enumerate(asked.inputs):
            tokens = await prompts.tokens(self._tokenizer, one, param, asked.add_special_tokens)
            self._planner.check_length(len(tokens), param)
            requests.append(
                EngineRequest(
                    request_id=f"{name}-{index}",
                    prompt_token_ids=tokens,
                    sampling=SamplingParams(max_tokens=1),
                    arrival=arrival,
                    priority=asked.priority,
                    adapter=adapter,
                    cache_salt=asked.cache_salt,
                    deadline=None if most is None else arrival + most,
                    embed=True,
                    pooling=Pooling(self._purpose.pooling),
                )
            )
        self._planner.admit(tuple(requests))
        return tuple(requests)

    async def _vectors(self, requests: Sequence[EngineRequest]) -> list[tuple[float, ...]]:
        """Return the vectors in the requests' order. Raises ApiError (500, 503, 504)."""
        meters = {request.request_id: self._metrics.meter(request, "embeddings") for request in requests}
        reasons = dict.fromkeys(meters, Finish.ABORT.value)
        embeddings: dict[str, tuple[float, ...]] = {}
        try:
            async with aclosing(self._client.generate(requests)) as batches:
                async for outputs in batches:
                    for output in outputs:
                        meters[output.request_id].take(output)
                        reasons[output.request_id] = output.finish_reason or Finish.ABORT.value
                        if output.finish_reason == Finish.DEADLINE:
                            message = "the request's time is over"
                            raise ApiError(504, message, param="timeout", code="deadline_exceeded")
                        embeddings[output.request_id] = output.embedding or ()
        except EngineDied as error:
            raise ApiError(503, str(error), code=error.code, retry_after=5) from error
        except RequestFailed as error:
            reasons = dict.fromkeys(reasons, Finish.ERROR.value)
            raise ApiError(500, str(error), code="request_failed") from error
        finally:
            for request_id, meter in meters.items():
                meter.end(reasons[request_id])
        return [_unit(embeddings[request.request_id]) for request in requests]


def _unit(vector: Sequence[float]) -> tuple[float, ...]:
    length = math.sqrt(math.fsum(value * value for value in vector))
    return tuple(value / length for value in vector) if length > 0 else tuple(vector)


def _written(vector: Sequence[float], as_base64: bool) -> Any:
    """Return a list, or base64 of little-endian 32-bit floats, as OpenAI's clients read it."""
    if not as_base64:
        return list(vector)
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
