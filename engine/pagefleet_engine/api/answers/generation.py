"""One request under way: the engine's outputs become answers, counted and measured."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from pagefleet_engine.api.answers import logprobs
from pagefleet_engine.api.answers.answer import Answer, Piece, Scored
from pagefleet_engine.api.answers.logprobs import Vocabulary
from pagefleet_engine.api.answers.shapes import Usage
from pagefleet_engine.api.answers.text import Decode, TextStream
from pagefleet_engine.api.backend.engine import EngineClient, EngineDied, RequestFailed
from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.observability.metrics import Metrics
from pagefleet_engine.api.planning.plan import Plan
from pagefleet_engine.core.requests import EngineRequest, Finish, TokenLogprobs, TokenOutput
from pagefleet_engine.model.text.tokenizer import Tokenizer

CONTEXT_TOKENS = 8  # of the prompt, decoded before an answer that goes on with its text


class Generation:
    """The answers to one plan. `answers` are those of the first prompt, then of the second, and so on. `operation` is its kind
    in OpenTelemetry's words (gen_ai.operation.name)."""

    def __init__(
        self,
        plan: Plan,
        client: EngineClient,
        tokenizer: Tokenizer,
        words: Vocabulary,
        metrics: Metrics,
        operation: str = "chat",
    ) -> None:
        self.plan, self._client, self._metrics = plan, client, metrics
        self._tokenizer, self._words, self._operation = tokenizer, words, operation
        self._decode = self._decoder()
        self.answers = [self._answer(request) for request in plan.requests for _ in range(request.n)]
        self.usage = Usage(prompt=sum(len(request.prompt_token_ids) for request in plan.requests))
        self._begun: set[int] = set()
        self._of_prompts: dict[int, tuple[TokenLogprobs, ...]] = {}  # by the prompt's place, once they have come

    @property
    def parsed(self) -> bool:
        """Whether a parser divides the answers' text into reasoning, content and calls."""
        return self.plan.parser is not None

    async def pieces(self) -> AsyncGenerator[list[tuple[int, Piece]]]:
        """Yield the pieces of each answer, with its place, as they come. Closing it early aborts the engine's requests.

        Raises ApiError: 500 when the engine cannot compute them, 503 when it ends first, 504 when the deadline does.
        """
        plan, reasons = self.plan, dict.fromkeys((request.request_id for request in self.plan.requests), "abort")
        places = {request.request_id: place for place, request in enumerate(plan.requests)}
        meters = {request.request_id: self._metrics.meter(request, self._operation) for request in plan.requests}
        try:
            # aclosing: leaving early aborts the requests in the engine now, not when the generator is collected.
            async with aclosing(self._client.generate(plan.requests)) as batches:
                async for outputs in batches:
                    fresh: list[tuple[int, Piece]] = []
                    late = False
                    for output in outputs:
                        place = places[output.request_id]
                        meters[output.request_id].take(output)
                        at = place * plan.parameters.best_of + output.index
                        piece = self._take(place, at, output)
                        expired = piece.finish == Finish.DEADLINE  # not of an answer that a stop string has ended
                        late = late or expired
                        if shown := replace(piece, finish=None) if expired else piece:
                            fresh.append((at, shown))
                        if piece.finish is not None:
                            if output.finish_reason is None:  # a stop string: the engine does not know them
                                self._client.abort(output.request_id, output.index)
                            reasons[output.request_id] = "stop" if piece.finish == "tool_calls" else piece.finish
                    if fresh:  # also what came before the deadline is the client's
                        yield fresh
                    if late:
                        raise ApiError(504, "the request's time is over", param="timeout", code="deadline_exceeded")
                    if all(answer.finish is not None for answer in self.answers):
                        break
        except EngineDied as error:
            raise ApiError(503, str(error), code=error.code, retry_after=5) from error
        except RequestFailed as error:
            reasons = dict.fromkeys(reasons, Finish.ERROR.value)
            raise ApiError(500, str(error), code="request_failed") from error
        except ApiError:
            reasons = dict.fromkeys(reasons, Finish.DEADLINE.value)
            raise
        finally:
            for request_id, meter in meters.items():
                meter.end(reasons[request_id])

    def chosen(self) -> list[int]:
        """Return the places of the answers to send: for each prompt, the n with the highest mean log probability."""
        parameters, chosen = self.plan.parameters, []
        for place in range(len(self.plan.requests)):
            own = list(range(place * parameters.best_of, (place + 1) * parameters.best_of))
            if parameters.best_of > parameters.n:
                own.sort(key=lambda at: self.answers[at].mean_logprob, reverse=True)
            chosen += own[: parameters.n]
        return chosen

    def entries(self) -> int:
        """Estimate how many tokens an answer's documents hold, likely ones and echoes too."""
        parameters = self.plan.parameters
        likely = 1 + (parameters.logprobs or 0)
        prompt_entries = 0 if parameters.prompt_logprobs is None else 1 + parameters.prompt_logprobs
        echoes = self.echoed(range(len(self.answers))) if parameters.echo else 0
        return likely * self.usage.completion + prompt_entries * parameters.best_of * self.usage.prompt + echoes

    def echoed(self, answers: Iterable[int]) -> int:
        """Estimate `entries` of the echoes of the answers at these places; a token costs as much as four to decode."""
        each = 4 + (self.plan.parameters.logprobs or 0)
        return each * sum(len(self._request(at).prompt_token_ids) for at in answers)

    def echo(self, at: int) -> tuple[str, list[Scored]]:
        """Return the text of the prompt of the answer at a place, and its tokens if log probabilities are requested."""
        given = dict(enumerate(self._of_prompts.get(at // self.plan.parameters.best_of, ()), start=1))
        text = TextStream(self._decode, self._words.bytes, ())
        parts, scored = [], []
        for index, token in enumerate(self._request(at).prompt_token_ids):
            scored.append(Scored(given.get(index, TokenLogprobs(token, 0.0, 0)), text.offset(token)))
            parts.append(text.feed([token]))
        parts.append(text.finish())
        return "".join(parts), scored if self.plan.parameters.logprobs is not None else []

    def logprobs(self, scored: Sequence[Scored], offset: int = 0, *, first: bool = False) -> dict[str, Any] | None:
        """Return OpenAI's object, the tokens' text moved by `offset`; `first` is that of `logprobs.completion`."""
        parameters = self.plan.parameters
        if parameters.logprobs is None:
            return None
        if parameters.conversation is not None:
            return logprobs.chat(scored, self._words, parameters.logprobs)
        moved = [one.moved(offset) for one in scored] if offset else scored
        return logprobs.completion(moved, self._words, parameters.logprobs, first=first)

    def prompt_logprobs_document(self, at: int) -> dict[str, Any]:
        """Return vLLM's `prompt_logprobs` of the answer at a place, nothing where they are not requested."""
        top = self.plan.parameters.prompt_logprobs
        if top is None:
            return {}
        scored = self._of_prompts.get(at // self.plan.parameters.best_of, ())
        return {"prompt_logprobs": logprobs.prompt(scored, self._words, top)}

    def _request(self, at: int) -> EngineRequest:
        return self.plan.requests[at // self.plan.parameters.best_of]

    def _take(self, place: int, at: int, output: TokenOutput) -> Piece:
        if output.prompt_logprobs is not None:
            self._of_prompts[place] = output.prompt_logprobs
        if place not in self._begun:
            self._begun.add(place)
            self.usage.cached += output.cached_tokens
        answer = self.answers[at]
        tokens, reasoning = answer.tokens, answer.reasoning
        piece = answer.take(output)
        self.usage.completion += answer.tokens - tokens
        self.usage.reasoning += answer.reasoning - reasoning
        return piece

    def _answer(self, request: EngineRequest) -> Answer:
        parameters, tokenizer = self.plan.parameters, self._tokenizer
        # The answer to a conversation is a text of its own, unless it goes on with the last message.
        begins = parameters.conversation is not None and parameters.conversation.add_generation_prompt
        text = TextStream(
            self._decode,
            self._words.bytes,
            parameters.stop,
            include_stop=parameters.include_stop,
            unstoppable=parameters.min_tokens,
            before=() if begins else request.prompt_token_ids[-CONTEXT_TOKENS:],
        )
        silent = set() if parameters.ignore_eos else set(tokenizer.eos_token_ids)
        silent |= set() if parameters.include_stop else set(parameters.stop_token_ids)
        return Answer(text, silent, parser=self.plan.parser, mute=parameters.max_tokens == 0)

    def _decoder(self) -> Decode:
        """Return what decodes the answers: without special tokens, but for those that the parser reads."""
        tokenizer, skip = self._tokenizer, self.plan.parameters.skip_special_tokens
        markers = self.plan.dialect.markers(calls=self.plan.tools is not None) if self.parsed else ()
        read = {tokenizer.backend.token_to_id(marker) for marker in markers} & tokenizer.special_ids
        if not skip or not read:
            return partial(tokenizer.decode, skip_special_tokens=skip)
        hidden = tokenizer.special_ids - read
        return lambda ids: tokenizer.decode([one for one in ids if one not in hidden], skip_special_tokens=False)
