"""The engine's HTTP API against a real engine: the official client works, streams equal whole answers, and bad input
is refused in OpenAI's shape with the field named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from support.engine.api_process import NAME, Serving, make_model, serving, until

METRICS = {
    "pagefleet_num_requests_running", "pagefleet_num_requests_waiting", "pagefleet_kv_cache_usage_perc",
    "pagefleet_kv_pages", "pagefleet_kv_pages_free", "pagefleet_kv_pages_cached", "pagefleet_prompt_tokens_total",
    "pagefleet_generation_tokens_total", "pagefleet_request_success_total", "pagefleet_num_preemptions_total",
    "pagefleet_time_to_first_token_seconds_bucket", "pagefleet_inter_token_latency_seconds_bucket",
    "pagefleet_e2e_request_latency_seconds_bucket", "pagefleet_request_queue_time_seconds_bucket",
    "pagefleet_engine_info",
}  # fmt: skip
CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("http")
    flags = ("--max-model-len=16384", "--max-prompt-tokens=200", "--max-output-tokens=12000")
    with serving(make_model(folder / "model"), folder / "termination", *flags) as running:
        yield running


def test_a_streamed_chat_equals_the_whole_one_and_counts_its_tokens(client: openai.OpenAI) -> None:
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    asked = {"model": NAME, "messages": messages, "max_completion_tokens": 30, "temperature": 0}
    whole = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    chunks = list(
        client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True}
        )
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["length"]
    assert whole.usage is not None and whole.usage.completion_tokens == 30
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens == whole.usage.prompt_tokens + 30


def test_a_repeated_prompt_reports_its_cached_tokens(client: openai.OpenAI) -> None:
    for _ in range(2):
        answer = client.completions.create(model=NAME, prompt="a prompt of more than two pages" * 2, max_tokens=1)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 48


def test_token_ids_as_prompt_answer_as_their_text(client: openai.OpenAI) -> None:
    # "!" is the first character of the vocabulary, after three special tokens.
    answers = [
        client.completions.create(model=NAME, prompt=prompt, max_tokens=8, temperature=0).choices[0].text
        for prompt in ('!"#', [3, 4, 5], [[3, 4, 5]])
    ]
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_across_tokens_ends_the_answer_and_is_never_sent(client: openai.OpenAI, stream: bool) -> None:
    asked = {"model": NAME, "prompt": "stop here", "max_tokens": 40, "temperature": 0}
    base = client.completions.create(**asked, extra_body={"ignore_eos": True}).choices[0].text
    at = next(index for index in range(5, 35) if base.find(base[index : index + 3]) == index)
    stop = base[at : at + 3]
    answer = client.completions.create(
        **asked, stop=["\x00never", stop], stream=stream, extra_body={"ignore_eos": True}
    )
    choices = [c for chunk in answer for c in chunk.choices] if stream else list(answer.choices)
    assert "".join(choice.text for choice in choices) == base[:at]
    assert choices[-1].finish_reason == "stop"


def test_a_stop_token_ends_the_answer_without_its_text(client: openai.OpenAI, served: Serving) -> None:
    asked = {"model": NAME, "prompt": "stop token", "max_tokens": 20, "temperature": 0}
    base = client.completions.create(**asked, extra_body={"ignore_eos": True}).choices[0].text
    token = 3 + ord(base[4]) - 33
    answer = client.completions.create(**asked, extra_body={"ignore_eos": True, "stop_token_ids": [token]})
    assert answer.choices[0].text == base[: base.index(base[4])]
    assert answer.choices[0].finish_reason == "stop"


def test_a_seed_fixes_a_sampled_answer(client: openai.OpenAI) -> None:
    def text(seed: int) -> str:
        asked = client.completions.create(model=NAME, prompt="x", max_tokens=24, temperature=1.5, seed=seed)
        return asked.choices[0].text

    assert text(5) == text(5)
    assert len({text(seed) for seed in range(4)}) > 1


def test_a_client_that_leaves_ends_its_request_in_the_engine(client: openai.OpenAI, served: Serving) -> None:
    before = served.metric("pagefleet_request_success_total", finished_reason="abort")
    stream = client.completions.create(
        model=NAME, prompt="long", max_tokens=12000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    until(lambda: served.metric("pagefleet_num_requests_running") == 0, "the engine went on")
    assert served.metric("pagefleet_request_success_total", finished_reason="abort") == before + 1
    assert served.metric("pagefleet_kv_cache_usage_perc") == 0


def test_models_and_metrics_have_their_contracted_names(client: openai.OpenAI, served: Serving) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    text = served.ask("GET", "/metrics").body.decode()
    assert {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")} >= METRICS
    assert served.metric("pagefleet_kv_pages", model_name=NAME) == 2048
    assert served.metric("pagefleet_kv_page_tokens", model_name=NAME) == 16


def test_the_clients_error_carries_parameter_and_code(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=NAME, prompt="a" * 201)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="other", prompt="a")
    assert missing.value.code == "model_not_found" and missing.value.param == "model"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"n": 17}, "n"), ({"n": 0}, "n"), ({"n": 2, "best_of": 1}, "best_of"), ({"best_of": 17}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"), ({"prompt": ["a"] * 9, "n": 8}, "n"),
        ({"logprobs": 21}, "logprobs"), ({"logprobs": True}, "logprobs"), ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"), ({"echo": 1}, "echo"),
        ({"presence_penalty": 2.5}, "presence_penalty"), ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"), ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"99": 1}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(301)}}, "logit_bias"), ({"min_tokens": 2}, "min_tokens"),
        ({"timeout": 0}, "timeout"), ({"timeout": "1"}, "timeout"), ({"priority": 1.5}, "priority"),
        ({"cache_salt": ""}, "cache_salt"), ({"suffix": "x"}, "suffix"), ({"store": 0}, "store"),
        ({"guided_regex": "("}, "guided_regex"), ({"use_beam_search": True}, "use_beam_search"),
        ({"colour": "red"}, "colour"), ({"temperature": "hot"}, "temperature"), ({"temperature": 2.1}, "temperature"),
        ({"temperature": True}, "temperature"), ({"top_p": 0}, "top_p"), ({"min_p": -0.1}, "min_p"),
        ({"top_k": 1.5}, "top_k"), ({"seed": 2**64}, "seed"), ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 12001}, "max_tokens"), ({"stop": ["a"] * 17}, "stop"), ({"stop": [""]}, "stop"),
        ({"stop": 0}, "stop"), ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [2**70]}, "stop_token_ids"),
        ({"stop_token_ids": "5"}, "stop_token_ids"), ({"stream": "yes"}, "stream"), ({"ignore_eos": 1}, "ignore_eos"),
        ({"stream_options": {"include_usage": True}}, "stream_options"), ({"user": 5}, "user"),
        ({"stream": True, "stream_options": {"include": True}}, "stream_options"), ({"model": 5}, "model"),
        ({"model": None}, "model"), ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"), ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 17}, "prompt"), ({"prompt": ["a", 5]}, "prompt"), ({"prompt": [99999]}, "prompt"), ({"prompt": [True]}, "prompt"),
        ({"prompt": [2**70]}, "prompt"), ({"prompt": {"a": 1}}, "prompt"), ({"messages": []}, "messages"),
    ],
)  # fmt: skip
def test_a_bad_parameter_of_a_completion_is_refused_by_name(
    served: Serving, change: dict[str, object], param: str
) -> None:
    reply = served.post(COMPLETION, {"model": NAME, "prompt": "a", "max_tokens": 1, **change})
    assert (reply.status, reply.error["param"]) == (400, param), reply.body
    assert reply.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": "hi"}, "messages"), ({"messages": []}, "messages"), ({"messages": [5]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": [], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]}, "messages[0].tool_calls"),
        ({"tools": [{"type": "function"}]}, "tools[0]"), ({"tool_choice": "auto"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"), ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"), ({"continue_final_message": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": [[[[[[[[[1]]]]]]]]]}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "x" * 20000}}, "chat_template_kwargs"), ({"best_of": 2}, "best_of"),
        ({"prompt": "a"}, "prompt"), ({"max_completion_tokens": 20000}, "max_completion_tokens"),
        ({"chat_template_kwargs": {"__class__": 1}}, "chat_template_kwargs"), ({"n": 64}, "n"),
    ],
)  # fmt: skip
def test_a_bad_parameter_of_a_chat_is_refused_by_name(served: Serving, change: dict[str, object], param: str) -> None:
    reply = served.post(
        CHAT, {"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **change}
    )
    assert (reply.status, reply.error["param"]) == (400, param), reply.body


@pytest.mark.parametrize(
    "unused",
    [
        {"n": 1, "logprobs": None, "user": "me", "frequency_penalty": 0},
        {"stop": None, "stream": None, "max_tokens": None},
    ],
)
def test_known_parameters_with_their_default_values_are_accepted(served: Serving, unused: dict[str, object]) -> None:
    assert served.post(COMPLETION, {"model": NAME, "prompt": "a", "max_tokens": 1, **unused}).status == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"[1]", 400), (b"\xff\xfe", 400), (b"[" * 100_000, 400),
        (b'{"model":"tiny","prompt":' + b"[" * 900 + b"]" * 900 + b"}", 400),
        (b'{"model":"tiny","prompt":"\\ud800"}', 400), (b'{"model":"tiny","prompt":"a","temperature":NaN}', 400),
        (b'{"model":"tiny","temperature":1e999,"prompt":"a"}', 400), (b" " * (2 * 2**20 + 1), 413),
        (json.dumps({"model": NAME, "prompt": "long " * 300_000}).encode(), 400),
    ],
)  # fmt: skip
def test_a_body_that_is_no_request_is_refused(served: Serving, body: bytes, status: int) -> None:
    reply = served.ask("POST", COMPLETION, body)
    assert reply.status == status, reply.body[:200]
    assert set(reply.error) == {"message", "type", "param", "code"}
    assert len(reply.body) < 2000


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404), ("GET", "/v1", 404), ("POST", "/v1/nothing", 404), ("GET", "/v1/../etc/passwd", 404),
        ("GET", COMPLETION, 405), ("DELETE", "/v1/models", 405), ("POST", "/ready", 405),
    ],
)  # fmt: skip
def test_other_paths_and_methods_are_refused_in_shape(served: Serving, method: str, path: str, status: int) -> None:
    reply = served.ask(method, path)
    assert reply.status == status
    assert reply.error["message"]
    assert ("allow" in reply.headers) == (status == 405)
