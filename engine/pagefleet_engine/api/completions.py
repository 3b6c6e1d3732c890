"""/v1/completions and /v1/chat/completions: generates within the limits, answers whole or as server-sent events.

Never sends a byte of a stream before the first token, and never ends a stream silently: what cannot be finished ends
with an error event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from pagefleet_engine.api.engine import EngineClient, EngineDied
from pagefleet_engine.api.errors import ApiError, invalid
from pagefleet_engine.api.metrics import Metrics
from pagefleet_engine.api.parameters import Parameters, parse
from pagefleet_engine.api.shapes import Piece, Shape, Usage, event
from pagefleet_engine.api.text import TextStream
from pagefleet_engine.core.requests import EngineRequest, SamplingParams, TokenOutput
from pagefleet_engine.model.tokenizer import Tokenizer

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
BODY_SECONDS = 30.0
LONG_TEXT = 1 << 14  # characters; tokenising more takes long enough to be worth a thread
GREEDY_BELOW = 1e-5  # of temperature: logits divided by less overflow


@dataclass(frozen=True)
class Limits:
    """Caps of this server; None means the model's own."""

    prompt_tokens: int | None
    output_tokens: int | None
    queued: int


class Completions:
    """Both completion endpoints of one served model."""

    def __init__(self, name: str, client: EngineClient, tokenizer: Tokenizer, metrics: Metrics, limits: Limits) -> None:
        self._name, self._client, self._limits = name, client, limits
        self._tokenizer, self._metrics = tokenizer, metrics

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, Shape(self._name, chat=True))

    async def completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, Shape(self._name, chat=False))

    async def _answer(self, request: web.Request, shape: Shape) -> web.StreamResponse:
        arrival = time.monotonic()
        parameters = parse(await _json(request), chat=shape.chat)
        if parameters.model != self._name:
            raise ApiError(
                404,
                f"the model {parameters.model[:200]!r} does not exist; this server has {self._name!r}",
                param="model",
                code="model_not_found",
            )
        tokens = await self._tokens(parameters)
        sampling = self._sampling(parameters, len(tokens), shape.chat)
        if self._client.waiting >= self._limits.queued:
            raise ApiError(
                429,
                f"the queue is full ({self._limits.queued} requests); try again later",
                code="queue_full",
                retry_after=1,
            )
        usage = Usage(prompt=len(tokens))
        pieces = self._pieces(EngineRequest(shape.id, tokens, sampling, arrival), parameters, usage)
        if parameters.stream:
            return await self._stream(request, shape, pieces, usage, parameters.include_usage)
        texts, finish = [], "stop"
        async with aclosing(pieces):
            async for piece in pieces:
                texts.append(piece.text)
                finish = piece.finish or finish
        return web.json_response(shape.whole("".join(texts), finish, usage))

    async def _pieces(self, request: EngineRequest, parameters: Parameters, usage: Usage) -> AsyncGenerator[Piece]:
        """The answer as it comes, measured. Closing it early aborts the request in the engine.

        Raises ApiError (503) when the engine ends first.
        """
        text = TextStream(self._tokenizer.decode, parameters.stop)
        last, finish = request.arrival, None
        try:
            # aclosing: leaving early aborts the request in the engine now, not when the generator is collected.
            async with aclosing(self._client.generate(request)) as outputs:
                async for output in outputs:
                    last = self._measure(output, request.arrival, last, usage)
                    # The token that ends an answer (end of text, a stop token) is no part of its text.
                    spoken = output.token_ids[:-1] if output.finish_reason == "stop" else output.token_ids
                    fresh = text.feed(spoken)
                    if output.finish_reason is not None:
                        fresh += text.finish()
                    finish = "stop" if text.stopped else output.finish_reason
                    if finish is not None:
                        yield Piece(fresh, finish)
                        break
                    yield Piece(fresh)
        except EngineDied as error:
            raise ApiError(503, str(error), code=error.code, retry_after=5) from error
        finally:
            self._metrics.finished(finish or "abort", time.monotonic() - request.arrival)

    def _measure(self, output: TokenOutput, arrival: float, last: float, usage: Usage) -> float:
        """Count an output. Returns the time of the request's last token, in seconds of the monotonic clock."""
        if not output.token_ids:
            return last
        now = time.monotonic()
        if usage.completion == 0:
            usage.cached = output.cached_tokens
            self._metrics.first(output, now - arrival)
        else:
            self._metrics.itl.observe(now - last)
        usage.completion += len(output.token_ids)
        self._metrics.generation_tokens.inc(len(output.token_ids))
        return now

    async def _stream(
        self,
        request: web.Request,
        shape: Shape,
        pieces: AsyncGenerator[Piece],
        usage: Usage,
        include_usage: bool,
    ) -> web.StreamResponse:
        """Server-sent events. The headers leave with the first token: a gateway's first byte is then TTFT."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        async with aclosing(pieces):
            try:
                async for piece in pieces:
                    if not response.prepared:
                        await response.prepare(request)
                        if shape.chat:
                            await response.write(event(shape.opening()))
                    if piece.text or piece.finish:
                        await response.write(event(shape.part(piece)))
            except ApiError as error:
                if not response.prepared:
                    raise
                await response.write(event(error.document()))
            else:
                if include_usage:
                    await response.write(event(shape.usage(usage)))
                await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _tokens(self, parameters: Parameters) -> tuple[int, ...]:
        """The prompt's token ids. Raises ApiError (400)."""
        if isinstance(parameters.prompt, tuple):
            size = self._tokenizer.vocab_size
            beyond = next((token for token in parameters.prompt if token >= size), None)
            if beyond is not None:
                raise invalid("prompt", f"token id {beyond} is beyond the vocabulary of {size}")
            return parameters.prompt
        if parameters.messages is None:
            text = parameters.prompt or ""
            if len(text) < LONG_TEXT:
                return tuple(self._tokenizer.encode(text))
            return tuple(await asyncio.to_thread(self._tokenizer.encode, text))
        try:
            if sum(len(message["content"]) for message in parameters.messages) < LONG_TEXT:
                return tuple(self._tokenizer.apply_chat_template(parameters.messages))
            return tuple(await asyncio.to_thread(self._tokenizer.apply_chat_template, parameters.messages))
        except (ValueError, TypeError) as error:
            raise invalid("messages", str(error)) from error

    def _sampling(self, parameters: Parameters, prompt: int, chat: bool) -> SamplingParams:
        """Checks the request's size against the server's limits. Raises ApiError (400)."""
        ready = self._client.ready
        if ready is None:
            raise ApiError(503, "the model is still loading", code="not_ready", retry_after=5)
        longest = min(ready.max_model_len, ready.capacity_tokens)
        most_prompt = min(self._limits.prompt_tokens or longest, longest - 1)
        param = "messages" if chat else "prompt"
        if prompt > most_prompt:
            raise invalid(
                param, f"the prompt has {prompt} tokens, allowed are {most_prompt}", "context_length_exceeded"
            )
        if prompt == 0:
            raise invalid(param, "the prompt has no tokens")
        most_output = min(self._limits.output_tokens or longest, longest - prompt)
        wanted, name = parameters.max_tokens, parameters.max_tokens_name
        if wanted is not None and wanted > most_output:
            raise invalid(
                name,
                f"{name} is {wanted}, allowed are {most_output} after a prompt of {prompt} tokens",
                "context_length_exceeded" if wanted > longest - prompt else "max_tokens_exceeded",
            )
        default = most_output if chat else min(DEFAULT_COMPLETION_TOKENS, most_output)
        return SamplingParams(
            max_tokens=wanted or default,
            temperature=parameters.temperature if parameters.temperature >= GREEDY_BELOW else 0.0,
            top_p=parameters.top_p,
            top_k=parameters.top_k,
            min_p=parameters.min_p,
            seed=parameters.seed,
            stop_token_ids=parameters.stop_token_ids,
            ignore_eos=parameters.ignore_eos,
        )


async def _json(request: web.Request) -> Any:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
    except TimeoutError:
        raise ApiError(408, f"the request body did not come within {BODY_SECONDS:g} s", code="body_timeout") from None
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise invalid("body", f"the request body is not valid JSON: {str(error)[:200]}", "invalid_json") from error
    except RecursionError:
        raise invalid("body", "the request body is nested too deeply", "invalid_json") from None
