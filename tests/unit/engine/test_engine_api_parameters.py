"""Every parameter of a request is understood or refused by name; nothing is silently ignored, nothing is unbounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.parameters import Parameters, others, parse, sampling_defaults
from pagefleet_engine.api.parameters.generation import CHAT, COMPLETION, NOT_SUPPORTED, WITHOUT_EFFECT
from pagefleet_engine.api.protocols import message_request, response_request

JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(max_size=8),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = sorted(set(CHAT) | set(COMPLETION) | set(NOT_SUPPORTED))
HI = [{"role": "user", "content": "hi"}]
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def chat(**change: Any) -> Parameters:
    return parse({"model": "m", "messages": HI, **change}, chat=True)


def completion(**change: Any) -> Parameters:
    return parse({"model": "m", "prompt": "x", **change}, chat=False)


STATED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20.0, "min_p": 0.05, "repetition_penalty": 1.1}
OTHERS = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 1}
SHAPES: dict[str, Callable[..., Parameters]] = {
    "chat": lambda body, defaults: parse({"messages": HI, **body}, chat=True, defaults=defaults),
    "completion": lambda body, defaults: parse({"prompt": "x", **body}, chat=False, defaults=defaults),
    "message": lambda body, defaults: message_request.parameters({"messages": HI, "max_tokens": 3, **body}, defaults),
    "response": lambda body, defaults: response_request.parameters({"input": "x", **body}, (), defaults)[0],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_field_that_a_request_does_not_name_has_the_checkpoints_value(shape: str) -> None:
    read, defaults = SHAPES[shape], sampling_defaults({**STATED, "max_new_tokens": 5, "do_sample": True, "x": []})
    assert dict(defaults) == STATED

    def values(**body: Any) -> dict[str, Any]:
        made = read({"model": "m", **body}, defaults)
        return {name: getattr(made, name) for name in STATED}

    assert values() == values(temperature=None, top_k=None) == STATED
    assert values(**OTHERS) == OTHERS
    assert values(top_k=-1, top_p=0.5) == {**STATED, "top_k": 0, "top_p": 0.5}
    assert read({"model": "m"}, {}) == read({"model": "m", **OTHERS, "temperature": 1}, defaults)
    assert read({"model": "m"}, sampling_defaults({"temperature": None})) == read({"model": "m"}, {})


@pytest.mark.parametrize(("name", "value"), [
    ("temperature", 2.5), ("temperature", "0.6"), ("top_p", 0), ("top_k", 1.5), ("min_p", True), ("repetition_penalty", -1),
])  # fmt: skip
def test_a_checkpoints_value_outside_a_fields_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        sampling_defaults({**STATED, name: value})
    assert caught.value.param == name


def test_a_full_request_is_read() -> None:
    read = completion(
        prompt=["hi", "you"], max_tokens=5, temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, seed=-3, stop="x",
        stop_token_ids=[1], ignore_eos=True, stream=True, user="u", n=2, best_of=2, logprobs=3, echo=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True}, include_stop_str_in_output=True,
        skip_special_tokens=False, add_special_tokens=False, min_tokens=2, presence_penalty=-2, frequency_penalty=2,
        repetition_penalty=1.5, logit_bias={"5": -1, "7": 2.5}, priority=3, cache_salt="s", timeout=2,
    )  # fmt: skip
    assert read == Parameters(
        model="m", prompts=("hi", "you"), max_tokens=5, temperature=0.5, top_p=0.9, top_k=0, min_p=0.1, seed=-3,
        stop=("x",), stop_token_ids=(1,), ignore_eos=True, stream=True, n=2, best_of=2, logprobs=3, echo=True,
        include_usage=True, continuous_usage=True, include_stop=True, skip_special_tokens=False,
        add_special_tokens=False, min_tokens=2, presence_penalty=-2.0, frequency_penalty=2.0, repetition_penalty=1.5,
        logit_bias=((5, -1.0), (7, 2.5)), priority=3, cache_salt="s", timeout=2.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("a", ("a",)), (["a"], ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3))),
        ([1.0, 2], ((1, 2),)), ([["1"][0], [4]], ("1", (4,))),
    ],
)  # fmt: skip
def test_a_prompt_is_one_or_several(prompt: Any, read: Any) -> None:
    assert completion(prompt=prompt).prompts == read


def test_logprobs_of_a_chat_are_a_flag_and_a_count() -> None:
    assert chat().logprobs is None
    assert chat(logprobs=False, top_logprobs=None).logprobs is None
    assert chat(logprobs=True).logprobs == 0
    assert chat(logprobs=True, top_logprobs=20).logprobs == 20


def test_text_parts_are_joined_and_developer_means_system() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    conversation = chat(messages=[{"role": "developer", "content": parts, "name": "n"}]).conversation
    assert conversation is not None
    assert conversation.messages == ({"role": "system", "content": "ab"},)


def test_calls_and_their_answers_are_read_for_the_template() -> None:
    answer = {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []}
    conversation = chat(messages=[*HI, answer, {"role": "tool", "tool_call_id": "c1", "content": "x"}]).conversation
    assert conversation is not None
    assert conversation.messages[1] == {
        "role": "assistant", "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
    }  # fmt: skip
    assert conversation.messages[2] == {"role": "tool", "content": "x", "tool_call_id": "c1", "name": "f"}


def test_what_a_template_is_given_besides() -> None:
    conversation = chat(chat_template_kwargs={"enable_thinking": False, "documents": [{"text": "x"}]}).conversation
    assert conversation is not None and conversation.add_generation_prompt
    assert conversation.template_kwargs == {"enable_thinking": False, "documents": [{"text": "x"}]}
    last = [*HI, {"role": "assistant", "content": "I am"}]
    continued = chat(messages=last, continue_final_message=True).conversation
    assert continued is not None and continued.continue_final_message and not continued.add_generation_prompt


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": [*HI, {"role": "tool", "tool_call_id": "c9", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": HI * 5000}, "messages"), ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": HI, "continue_final_message": True}, "continue_final_message"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"add_generation_prompt": True}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"eos_token": ""}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"a{i}": 1 for i in range(33)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"), ({"chat_template": ""}, "chat_template"),
        ({"chat_template": "x" * 70000}, "chat_template"), ({"prompt": "x"}, "prompt"), ({"echo": True}, "echo"),
        ({"logprobs": 1}, "logprobs"), ({"top_logprobs": 1}, "top_logprobs"), ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 5, "max_completion_tokens": 4}, "min_tokens"), ({"stream_options": {}}, None),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)  # fmt: skip
def test_a_wrong_chat_is_refused_by_name(change: dict[str, Any], param: str | None) -> None:
    if param is None:
        chat(**change)
        return
    with pytest.raises(ApiError) as refused:
        chat(**change)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    "low_high", [("n", 1, 16), ("logprobs", 0, 20), ("best_of", 1, 16), ("prompt_logprobs", 0, 20)]
)
def test_counts_are_bounded(low_high: tuple[str, int, int]) -> None:
    name, low, high = low_high
    for value in (low, high):
        completion(**{name: value})
    for value in (low - 1, high + 1, 2**70, -1.5, True, "1", [1]):
        with pytest.raises(ApiError) as refused:
            completion(**{name: value})
        assert refused.value.param == name


def test_no_answer_is_only_wanted_with_an_echo() -> None:
    assert completion(max_tokens=0, echo=True).max_tokens == 0
    with pytest.raises(ApiError, match="max_tokens"):
        completion(max_tokens=0)


def test_answers_of_one_request_are_bounded_together() -> None:
    completion(prompt=["x"] * 16, n=4)
    with pytest.raises(ApiError, match="allowed are 64"):
        completion(prompt=["x"] * 16, n=5)


def test_the_newer_name_of_the_token_limit_wins_and_names_itself() -> None:
    read = chat(max_tokens=9, max_completion_tokens=4)
    assert (read.max_tokens, read.max_tokens_name) == (4, "max_completion_tokens")


@pytest.mark.parametrize("name", sorted(NOT_SUPPORTED))
@pytest.mark.parametrize("is_chat", [True, False])
def test_a_parameter_without_behaviour_is_refused_unless_it_is_off(name: str, is_chat: bool) -> None:
    make = chat if is_chat else completion
    for unused in NOT_SUPPORTED[name]:
        make(**{name: unused})
    with pytest.raises(ApiError) as refused:
        make(**{name: "something"})
    assert (refused.value.status, refused.value.param) == (400, name)


@settings(max_examples=400)
@given(some.dictionaries(some.sampled_from(NAMES) | some.text(max_size=5), JSON, max_size=5), some.booleans())
def test_any_json_is_read_or_refused_with_400(body: dict[str, Any], is_chat: bool) -> None:
    base: dict[str, Any] = {"model": "m", "messages": HI} if is_chat else {"model": "m", "prompt": "x"}
    for change in (body, base | body):
        try:
            parse(change, chat=is_chat)
        except ApiError as error:
            assert error.status == 400
            assert error.param is not None
            assert len(error.message) < 400


@settings(max_examples=200)
@given(JSON | some.dictionaries(some.sampled_from(["model", "input", "prompt", "messages", "dimensions"]), JSON))
def test_any_json_is_read_or_refused_by_the_other_endpoints(body: Any) -> None:
    for read in (others.embedding, others.tokenize):
        try:
            read(body)
        except ApiError as error:
            assert error.status == 400 and error.param is not None


def test_what_cannot_change_an_answer_is_accepted() -> None:
    """Ordinary clients send these: refusing them helps nobody."""
    plain = {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "safety_identifier": "s", "metadata": {"a": "b"},
             "store": True, "verbosity": "low", "service_tier": "flex", "prediction": {"type": "content", "content": "x"},
             "user": "u"}  # fmt: skip
    assert set(plain) == set(WITHOUT_EFFECT)
    assert chat(**plain, stream=True, stream_options={"include_obfuscation": False}) == chat(stream=True)
    assert completion(**plain, reasoning_effort="low") == completion()
    for name in plain:
        with pytest.raises(ApiError) as refused:
            chat(**{name: [3]})
        assert (refused.value.status, refused.value.param) == (400, name)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_earlier_reasoning_and_the_effort_reach_the_template(name: str) -> None:
    messages = [*HI, {"role": "assistant", "content": "4", name: "2 + 2"}, *HI]
    read = chat(messages=messages, reasoning_effort="high").conversation
    assert read is not None
    assert read.messages[1] == {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}
    assert read.template_kwargs == {"reasoning_effort": "high"}
    off = chat(reasoning_effort="none", chat_template_kwargs={"thinking": True}).conversation
    assert off is not None
    assert off.template_kwargs == {"reasoning_effort": "none", "enable_thinking": False, "thinking": True}
    with pytest.raises(ApiError, match=rf"messages\[0\]\.{name}"):
        chat(messages=[{"role": "assistant", "content": "4", name: 4}])
