"""/v1/score and /v1/rerank in vLLM's shapes: how well texts fit each other, as the checkpoint says that it scores.

A model of embeddings scores by the cosine of two vectors; a model with `classifier_from_token` by the probability of its yes
beside its no after both texts. Other models are refused.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from aiohttp import web

from pagefleet_engine.api.answers import shapes
from pagefleet_engine.api.answers.generation import Generation
from pagefleet_engine.api.answers.logprobs import Vocabulary
from pagefleet_engine.api.backend.engine import EngineClient
from pagefleet_engine.api.base.errors import invalid
from pagefleet_engine.api.endpoints.embeddings import Embeddings
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.api.parameters import Parameters, body, others
from pagefleet_engine.api.parameters.fields import read
from pagefleet_engine.api.parameters.others import MAX_TEXTS, Embedding
from pagefleet_engine.api.planning.plan import Planner
from pagefleet_engine.model.text.pooling import Purpose
from pagefleet_engine.model.text.tokenizer import Tokenizer

Pair = tuple[str, str]
AT_ONCE = 4  # pairs whose prompts one body of ours may hold twice
BIAS = 100.0  # makes a token the only one that can be chosen


class Scores:
    """Both endpoints of one served model."""

    def __init__(
        self,
        embeddings: Embeddings,
        planner: Planner,
        client: EngineClient,
        tokenizer: Tokenizer,
        metrics: Metrics,
        purpose: Purpose,
    ) -> None:
        self._embeddings, self._planner, self._client, self._purpose = embeddings, planner, client, purpose
        self._tokenizer, self._metrics, self._words = tokenizer, metrics, Vocabulary(tokenizer)

    async def rerank(self, request: web.Request) -> web.Response:
        arrival, timeout = time.monotonic(), body.timeout(request)
        fields = read(await body.document(request), others.RERANK, others.SCORE_NOT_SUPPORTED)
        documents = fields["documents"]
        pairs = [(fields["query"], document) for document in documents]
        scores, tokens = await self._scores(fields, pairs, arrival, timeout, "documents")
        order = sorted(range(len(scores)), key=lambda at: scores[at], reverse=True)[: fields["top_n"] or None]
        results = [
            {"index": at, "relevance_score": scores[at]}
            | ({"document": {"text": documents[at]}} if fields["return_documents"] else {})
            for at in order
        ]
        name = f"rerank-{secrets.token_hex(12)}"
        return _answer({"id": name, "model": fields["model"], "results": results}, tokens)

    async def score(self, request: web.Request) -> web.Response:
        arrival, timeout = time.monotonic(), body.timeout(request)
        fields = read(await body.document(request), others.SCORE, others.SCORE_NOT_SUPPORTED)
        sent = []
        for name, other in (("text_1", "queries"), ("text_2", "documents")):
            if (fields[name] is None) == (fields[other] is None):
                raise invalid(name, f"one of {name} and {other} is required", "missing_required_parameter")
            sent.append(name if fields[name] is not None else other)
        (first, second), (left, right) = sent, (fields[name] for name in sent)
        if len(left) not in (1, len(right)):
            raise invalid(first, f"{first} has {len(left)} texts: one, or as many as {second}, which has {len(right)}")
        pairs = list(zip(left * len(right) if len(left) == 1 else left, right, strict=True))
        scores, tokens = await self._scores(fields, pairs, arrival, timeout, second)
        data = [{"index": at, "object": "score", "score": score} for at, score in enumerate(scores)]
        head = {"id": f"score-{secrets.token_hex(12)}", "object": "list", "created": int(time.time())}
        return _answer({**head, "model": fields["model"], "data": data}, tokens)

    async def _scores(
        self, fields: Mapping[str, Any], pairs: Sequence[Pair], arrival: float, timeout: float | None, param: str
    ) -> tuple[list[float], int]:
        """Return a score for each pair, and the number of tokens read."""
        if self._purpose.no_yes is not None:
            return await self._judged(fields, pairs, self._purpose.no_yes, arrival, timeout, param)
        if not self._purpose.embeds:
            message = (
                "this model gives no scores: its checkpoint is neither one of embeddings nor has classifier_from_token"
            )
            raise invalid("model", message, "unsupported_model")
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        if len(texts) > 2 * MAX_TEXTS:
            raise invalid(param, f"{param} has more than {MAX_TEXTS} texts")
        same = {name: fields[name] for name in ("model", "priority", "cache_salt", "timeout")}
        asked = Embedding(inputs=tuple(texts), base64=False, add_special_tokens=True, **same)
        vectors, tokens = await self._embeddings.vectors(asked, arrival, timeout, param)
        found = dict(zip(texts, vectors, strict=True))
        return [_product(found[first], found[second]) for first, second in pairs], tokens

    async def _judged(
        self,
        fields: Mapping[str, Any],
        pairs: Sequence[Pair],
        no_yes: Pair,
        arrival: float,
        timeout: float | None,
        param: str,
    ) -> tuple[list[float], int]:
        """Score by two probabilities of the model for the token after each pair: each token is forced once and measured."""
        ids = [self._token(token) for token in no_yes]
        scores: list[float] = []
        tokens = 0
        for begin in range(0, len(pairs), AT_ONCE):
            prompts = tuple(self._prompt(pair) for pair in pairs[begin : begin + AT_ONCE])
            found = []
            for token in ids:
                parameters = Parameters(
                    **{name: fields[name] for name in ("model", "priority", "cache_salt", "timeout")},
                    prompts=prompts, max_tokens=1, temperature=0.0, logit_bias=((token, BIAS),), logprobs=0,
                    add_special_tokens=False,
                )  # fmt: skip
                plan = await self._planner.plan(parameters, arrival, timeout, param)
                found.append(
                    await self._logprobs(
                        Generation(plan, self._client, self._tokenizer, self._words, self._metrics, "score")
                    )
                )
                tokens += sum(len(request.prompt_token_ids) for request in plan.requests)
            scores += [1 / (1 + math.exp(min(no - yes, 700.0))) for no, yes in zip(*found, strict=True)]
        return scores, tokens // 2

    def _token(self, text: str) -> int:
        token = self._tokenizer.backend.token_to_id(text)
        if token is None:
            raise invalid(
                "model", f"the tokenizer has no token {text!r}, which the checkpoint scores by", "unsupported_model"
            )
        return token

    async def _logprobs(self, generation: Generation) -> list[float]:
        """Return the log probability of each prompt's one token. Raises ApiError."""
        async with aclosing(generation.pieces()) as batches:
            async for _ in batches:
                pass
        return [max(answer.logprob, -1e4) for answer in generation.answers]

    def _prompt(self, pair: Pair) -> str:
        """The pair in the chat template's words where it knows the roles query and document, else one after the other."""
        template = self._tokenizer.chat.default
        if template is None or "query" not in template or "document" not in template:
            return "".join(pair)
        turns = [{"role": role, "content": text} for role, text in zip(("query", "document"), pair, strict=True)]
        return self._tokenizer.chat.render(turns)


def _answer(document: Mapping[str, Any], tokens: int) -> web.Response:
    return shapes.answer({**document, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}, tokens)


def _product(first: Sequence[float], second: Sequence[float]) -> float:
    return math.fsum(one * other for one, other in zip(first, second, strict=True))
