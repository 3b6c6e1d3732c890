"""Turns a checked body into the engine's requests: tokenised, within this server's limits, with their grammar checked."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from pagefleet_engine.api.backend.engine import EngineClient
from pagefleet_engine.api.backend.models import Models
from pagefleet_engine.api.base.errors import ApiError, invalid
from pagefleet_engine.api.constrained.formats import Asked
from pagefleet_engine.api.constrained.grammars import Grammars
from pagefleet_engine.api.constrained.tools import Tools
from pagefleet_engine.api.parameters import Parameters
from pagefleet_engine.api.parameters.conversation import Conversation
from pagefleet_engine.api.parameters.generation import SAMPLING
from pagefleet_engine.api.parsing.deltas import Parser
from pagefleet_engine.api.parsing.reasoning import Reasoning, begun, detected, grammar_prefix
from pagefleet_engine.api.parsing.registry import Dialect, Style
from pagefleet_engine.api.planning import prompts
from pagefleet_engine.api.planning.limits import Limits, Rules
from pagefleet_engine.core.requests import EngineRequest, Grammar, SamplingParams
from pagefleet_engine.model.text.grammar import PREFIXED, prefixed
from pagefleet_engine.model.text.tokenizer import Tokenizer

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
MAX_PROMPT_LOGPROBS = 1 << 18  # of one body: each takes about 500 bytes of the API process until the answer is sent
GREEDY_BELOW = 1e-5  # the least temperature: logits divided by less overflow


@dataclass(frozen=True)
class Plan:
    """One body's requests, one for each prompt. `grammar` says whether their answers are bound by one."""

    id: str
    parameters: Parameters
    requests: tuple[EngineRequest, ...]
    grammar: bool
    dialect: Dialect
    begun: bool | None = None
    """Whether the answer begins within its reasoning; None: its text decides."""

    @property
    def parser(self) -> Parser | None:
        """Make the parser of one answer; None where all its text is content."""
        if self.parameters.conversation is None:
            return None
        tools = self.tools
        functions = tools.functions(self.grammar) if tools is not None else None
        return self.dialect.parser(functions, self.begun, forced=tools is not None and tools.choice == "required")

    @property
    def tools(self) -> Tools | None:
        return self.parameters.conversation.tools if self.parameters.conversation is not None else None


class Planner:
    """Raises ApiError: 400 with the parameter's name, 404 for other models, 429 when the queue is full."""

    def __init__(
        self, client: EngineClient, tokenizer: Tokenizer, models: Models, limits: Limits, rules: Rules
    ) -> None:
        self._client, self._tokenizer, self._models, self.limits = client, tokenizer, models, limits
        self.rules, self.grammars = rules, Grammars(tokenizer)
        found = detected(tokenizer.chat.default) if rules.reasoning is Reasoning.AUTO else rules.reasoning
        self._dialect = Dialect(Style.OPENAI if found is Reasoning.OPENAI_GPTOSS else rules.tool_style, found)

    async def plan(self, parameters: Parameters, arrival: float, timeout: float | None, param: str = "prompt") -> Plan:
        """`arrival` and `timeout` in seconds, of the monotonic clock; `timeout` goes with the body's own. `param`: the field
        that holds the prompts."""
        adapter = self._models.adapter(parameters.model)
        self._check(parameters)
        tokens, tail = await self._tokens(parameters, param)
        dialect = self._dialect
        starts = parameters.conversation is not None and parameters.conversation.add_generation_prompt
        within = begun(dialect.reasoning, tail) if starts else False
        asked = await self._grammar(parameters, within)
        name = f"{'chatcmpl' if parameters.conversation else 'cmpl'}-{secrets.token_hex(12)}"
        most = min((seconds for seconds in (parameters.timeout, timeout) if seconds is not None), default=None)
        requests = tuple(
            EngineRequest(
                request_id=f"{name}-{index}",
                prompt_token_ids=prompt,
                sampling=self._sampling(parameters, len(prompt), asked),
                arrival=arrival,
                priority=parameters.priority,
                n=parameters.best_of,
                adapter=adapter,
                cache_salt=parameters.cache_salt,
                deadline=None if most is None else arrival + most,
            )
            for index, prompt in enumerate(tokens)
        )
        _check_prompt_logprobs(parameters, requests)
        self.admit(requests)
        return Plan(name, parameters, requests, asked is not None, dialect, within)

    def check_length(self, tokens: int, param: str) -> None:
        """Raises ApiError (400)."""
        length = self.longest()
        most = min(self.limits.prompt_tokens or length, length - 1)
        if tokens > most:
            message = f"the prompt has {tokens} tokens, allowed are {most}"
            raise invalid(param, message, "context_length_exceeded")
        if tokens == 0:
            raise invalid(param, "the prompt has no tokens")

    def check_priority(self, priority: int) -> None:
        if priority and not self.rules.priorities:
            raise invalid("priority", "priority needs a server started with --scheduling-policy=priority")

    def check_template(self, conversation: Conversation | None) -> None:
        """Raises ApiError (400) when a request brings a template and may not."""
        if conversation is not None and conversation.template is not None and not self.rules.request_templates:
            raise invalid("chat_template", "chat_template needs a server started with --trust-request-chat-template")

    def admit(self, requests: tuple[EngineRequest, ...]) -> None:
        """Raises ApiError (429) when the queue has no room for them."""
        limits, client = self.limits, self._client
        answers = sum(request.n for request in requests)
        if client.waiting_with(answers) > limits.queued:
            raise ApiError(
                429, f"the queue is full ({limits.queued} requests); try again later", code="queue_full", retry_after=1
            )
        tokens, before = sum(len(request.prompt_token_ids) for request in requests), client.unanswered_tokens
        if limits.queued_tokens is not None and before and before + tokens > limits.queued_tokens:
            message = f"the queue is full ({limits.queued_tokens} tokens); try again later"
            raise ApiError(429, message, code="queue_full", retry_after=1)

    def _check(self, parameters: Parameters) -> None:
        most = self.limits.n
        if parameters.best_of > most:
            name = "n" if parameters.n > most else "best_of"
            raise invalid(name, f"{name} is {max(parameters.n, parameters.best_of)}, allowed are {most}")
        self.check_priority(parameters.priority)
        self.check_template(parameters.conversation)
        size = self._tokenizer.vocab_size
        prompts.check_ids(parameters.stop_token_ids, size, "stop_token_ids")
        prompts.check_ids([token for token, _ in parameters.logit_bias], size, "logit_bias")

    async def _grammar(self, parameters: Parameters, within: bool | None) -> Grammar | None:
        """Return the grammar of the answer: of the request's own format, its tools, or both, after the reasoning."""
        tools = parameters.conversation.tools if parameters.conversation else None
        checks: list[Asked] = tools.schemas() if tools is not None else []
        asked, forced = parameters.answer_format, tools is not None and tools.choice == "required"
        before = grammar_prefix(self._dialect.reasoning, within, forced=forced) if parameters.conversation else None
        if tools is not None:
            style = self._dialect.call_style if forced else self._dialect.style
            asked = tools.grammar(style, asked, thinks=before is not None)
        if asked is None:
            return None
        if before is not None:
            asked = Asked(Grammar(PREFIXED, prefixed(before, asked.grammar)), asked.param)
        await self.grammars.check([*checks, asked])
        return Grammar(asked.grammar.kind, asked.grammar.text)

    async def _tokens(self, parameters: Parameters, param: str) -> tuple[list[tuple[int, ...]], str]:
        """Return the prompts, and the end of a conversation's text."""
        if parameters.conversation is not None:
            tokens, tail = await prompts.chat_tokens(
                self._tokenizer, parameters.conversation, parameters.add_special_tokens
            )
            self.check_length(len(tokens), "messages")
            return [tokens], tail
        several = []
        for prompt in parameters.prompts:
            tokens = await prompts.tokens(self._tokenizer, prompt, param, parameters.add_special_tokens)
            self.check_length(len(tokens), param)
            several.append(tokens)
        return several, ""

    def longest(self) -> int:
        """Return the most tokens of a prompt and its answer together. Raises ApiError (503) while the model loads."""
        ready = self._client.ready
        if ready is None:
            raise ApiError(503, "the model is still loading", code="not_ready", retry_after=5)
        return min(ready.max_model_len, ready.capacity_tokens)

    def _sampling(self, parameters: Parameters, prompt: int, grammar: Grammar | None) -> SamplingParams:
        longest = self.longest()
        most = min(self.limits.output_tokens or longest, longest - prompt)
        requested, name = parameters.max_tokens, parameters.max_tokens_name
        least = parameters.min_tokens
        if requested is not None and requested > most:
            raise invalid(
                name,
                f"{name} is {requested}, allowed are {most} after a prompt of {prompt} tokens",
                "context_length_exceeded" if requested > longest - prompt else "max_tokens_exceeded",
            )
        if least > most:
            raise invalid("min_tokens", f"min_tokens is {least}, allowed are {most} after a prompt of {prompt} tokens")
        default = most if parameters.conversation else min(max(DEFAULT_COMPLETION_TOKENS, least), most)
        logprobs = parameters.logprobs
        asked = [parameters.prompt_logprobs, logprobs if parameters.echo else None]
        made = {name: getattr(parameters, name) for name in SAMPLING}
        made["temperature"] = parameters.temperature if parameters.temperature >= GREEDY_BELOW else 0.0
        made["prompt_logprobs"] = max((count for count in asked if count is not None), default=None)
        return SamplingParams(
            **made,
            max_tokens=max(1, default if requested is None else requested),
            # The best of several answers is chosen by the mean of their tokens' log probabilities.
            logprobs=0 if logprobs is None and parameters.best_of > parameters.n else logprobs,
            grammar=grammar,
        )


def _check_prompt_logprobs(parameters: Parameters, requests: tuple[EngineRequest, ...]) -> None:
    """Raises ApiError (400) for a body whose log probabilities of prompts would take too much memory."""
    entries = sum(
        (1 + request.sampling.prompt_logprobs) * len(request.prompt_token_ids)
        for request in requests
        if request.sampling.prompt_logprobs is not None
    )
    if entries > MAX_PROMPT_LOGPROBS:
        name = "logprobs" if parameters.prompt_logprobs is None else "prompt_logprobs"
        allowed = f"allowed are {MAX_PROMPT_LOGPROBS} for all prompts of a body together"
        raise invalid(name, f"{name} asks for {entries} log probabilities of prompt tokens, {allowed}")
