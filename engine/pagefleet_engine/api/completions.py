"""/v1/completions and /v1/chat/completions: checks limits, generates, answers whole or as server-sent events."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from pagefleet_engine.api.engine import EngineClient, EngineDied
from pagefleet_engine.api.errors import ApiError, invalid
from pagefleet_engine.api.metrics import Metrics
from pagefleet_engine.api.parameters import Parameters, parse
from pagefleet_engine.api.text import TextStream
from pagefleet_engine.core.requests import EngineRequest, SamplingParams
from pagefleet_engine.model.tokenizer import Tokenizer

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions


@dataclass(frozen=True)
class Limits:
    """Caps of this server; None means the model's own."""

    prompt_tokens: int | None
    output_tokens: int | None
    queued: int


@dataclass(frozen=True)
class Piece:
    """One step of an answer: new text, and with the last one why it ended."""

    text: str
    finish: str | None = None


@dataclass
class Usage:
    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def document(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Completions:
    """Both completion endpoints of one served model."""

    def __init__(self, name: str, client: EngineClient, tokenizer: Tokenizer, metrics: Metrics, limits: Limits) -> None:
        self._name, self._client, self._tokenizer, self._metrics, self._limits = name, client, tokenizer, metrics, limits

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, Shape(self._name, chat=True))

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, Shape(self._name, chat=False))

    async def _answer(self, request: web.Request, shape: Shape) -> web.StreamResponse:
        arrival = time.monotonic()
        parameters = parse(await _json(request), chat=shape.chat)
        if parameters.model != self._name:
            raise ApiError(404, f"the model {parameters.model!r} does not exist; this server has {self._name!r}",
                           param="model", code="model_not_found")  # fmt: skip
        tokens = self._tokens(parameters)
        engine_request = EngineRequest(shape.id, tokens, self._sampling(parameters, len(tokens), shape.chat), arrival)
        if self._client.waiting >= self._limits.queued:
            raise ApiError(429, f"the queue is full ({self._limits.queued} requests); try again later",
                           code="queue_full", retry_after=1)  # fmt: skip
        usage = Usage(prompt=len(tokens))
        pieces = self._pieces(engine_request, parameters, usage)
        if parameters.stream:
            return await self._stream(request, shape, pieces, usage, parameters.include_usage)
        text, finish = "", "stop"
        try:
            async for piece in pieces:
                text += piece.text
                finish = piece.finish or finish
        except EngineDied as error:
            raise ApiError(503, str(error), code="engine_died", retry_after=5) from error
        return web.json_response(shape.whole(text, finish, usage))

    async def _pieces(self, request: EngineRequest, parameters: Parameters, usage: Usage) -> AsyncGenerator[Piece]:
        """The answer as it comes, measured. Closing it early aborts the request in the engine."""
        text = TextStream(self._tokenizer.decode, parameters.stop)
        last, finish = request.arrival, None
        try:
            # aclosing: leaving early aborts the request in the engine now, not when the generator is collected.
            async with aclosing(self._client.generate(request)) as outputs:
                async for output in outputs:
                    now = time.monotonic()
                    if output.token_ids:
                        if usage.completion == 0:
                            usage.cached = output.cached_tokens
                            self._metrics.first(output, now - request.arrival)
                        else:
                            self._metrics.itl.observe(now - last)
                        usage.completion += len(output.token_ids)
                        self._metrics.generation_tokens.inc(len(output.token_ids))
                        last = now
                    fresh = text.feed(output.token_ids)
                    finish = "stop" if text.stopped else output.finish_reason
                    if finish is not None:
                        yield Piece(fresh + text.finish(), "stop" if text.stopped else finish)
                        break
                    yield Piece(fresh)
        finally:
            self._metrics.finished(finish or "abort")
            self._metrics.e2e.observe(time.monotonic() - request.arrival)

    async def _stream(
        self, request: web.Request, shape: Shape, pieces: AsyncGenerator[Piece], usage: Usage, include_usage: bool
    ) -> web.StreamResponse:
        """Server-sent events. The headers leave with the first token: a gateway's first byte is then TTFT."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        started = False
        try:
            async for piece in pieces:
                if not started:
                    await response.prepare(request)
                    started = True
                    if shape.chat:
                        await response.write(_event(shape.opening()))
                if piece.text or piece.finish:
                    await response.write(_event(shape.part(piece)))
            if include_usage:
                await response.write(_event(shape.usage(usage)))
            await response.write(b"data: [DONE]\n\n")
        except EngineDied as error:
            failure = ApiError(503, str(error), code="engine_died", retry_after=5)
            if not started:
                raise failure from error
            await response.write(_event(failure.document()))
        finally:
            await pieces.aclose()
        await response.write_eof()
        return response

    def _tokens(self, parameters: Parameters) -> tuple[int, ...]:
        if parameters.messages is not None:
            try:
                return tuple(self._tokenizer.apply_chat_template(parameters.messages))
            except ValueError as error:
                raise invalid("messages", str(error)) from error
        if isinstance(parameters.prompt, tuple):
            beyond = [token for token in parameters.prompt if token >= self._tokenizer.vocab_size]
            if beyond:
                raise invalid("prompt", f"token id {beyond[0]} is beyond the vocabulary of {self._tokenizer.vocab_size}")
            return parameters.prompt
        return tuple(self._tokenizer.encode(parameters.prompt or ""))

    def _sampling(self, parameters: Parameters, prompt: int, chat: bool) -> SamplingParams:
        """Checks the request's size against the server's limits. Raises ApiError (400)."""
        ready = self._client.ready
        if ready is None:
            raise ApiError(503, "the model is still loading", code="not_ready", retry_after=5)
        longest = min(ready.max_model_len, ready.capacity_tokens)
        most_prompt = min(self._limits.prompt_tokens or longest, longest - 1)
        param = "messages" if chat else "prompt"
        if prompt > most_prompt:
            raise invalid(param, f"the prompt has {prompt} tokens, allowed are {most_prompt}", "context_length_exceeded")
        if prompt == 0:
            raise invalid(param, "the prompt has no tokens")
        most_output = min(self._limits.output_tokens or longest, longest - prompt)
        wanted = parameters.max_tokens
        if wanted is not None and wanted > most_output:
            raise invalid("max_tokens", f"max_tokens is {wanted}, allowed are {most_output} after a prompt of {prompt} "
                          "tokens", "context_length_exceeded")  # fmt: skip
        default = most_output if chat else min(DEFAULT_COMPLETION_TOKENS, most_output)
        return SamplingParams(
            max_tokens=wanted or default,
            temperature=parameters.temperature,
            top_p=parameters.top_p,
            top_k=parameters.top_k,
            min_p=parameters.min_p,
            seed=parameters.seed,
            stop_token_ids=parameters.stop_token_ids,
            ignore_eos=parameters.ignore_eos,
        )


class Shape:
    """OpenAI's documents for one answer."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self.chat = chat
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._model, self._created = model, int(time.time())

    def whole(self, text: str, finish: str, usage: Usage) -> Mapping[str, Any]:
        if self.chat:
            choice: dict[str, Any] = {"message": {"role": "assistant", "content": text, "refusal": None}}
        else:
            choice = {"text": text}
        document = self._document([{**choice, "index": 0, "logprobs": None, "finish_reason": finish}], stream=False)
        return {**document, "usage": usage.document()}

    def opening(self) -> Mapping[str, Any]:
        return self._document([self._choice({"delta": {"role": "assistant", "content": ""}}, None)], stream=True)

    def part(self, piece: Piece) -> Mapping[str, Any]:
        body = {"delta": {"content": piece.text} if piece.text else {}} if self.chat else {"text": piece.text}
        return self._document([self._choice(body, piece.finish)], stream=True)

    def usage(self, usage: Usage) -> Mapping[str, Any]:
        return {**self._document([], stream=True), "usage": usage.document()}

    def _choice(self, body: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        return {**body, "index": 0, "logprobs": None, "finish_reason": finish}

    def _document(self, choices: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if stream else "chat.completion") if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model, "choices": choices}


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise invalid("body", f"the request body is not valid JSON: {str(error)[:200]}") from error


def _event(document: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
