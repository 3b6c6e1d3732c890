"""What operators of an engine rely on: keys that change with their file, sleep, adapters at run time, drains, time
limits, full queues, and clients that do not read. Against a real engine.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine.api_process import NAME, Reply, Serving, make_adapter, make_model, serving, until

COMPLETION = "/v1/completions"
LONG = {"model": NAME, "prompt": "long", "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_model(tmp_path_factory.mktemp("admin") / "model")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    make_adapter(folder / "tuned")
    (folder / "broken").mkdir()
    (folder / "out").symlink_to("/etc")
    return folder


@pytest.fixture(scope="module")
def served(model: str, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    flags = (
        "--allow-runtime-adapters", f"--adapter-root={root}", "--write-timeout=1", "--max-n=2",
        "--scheduling-policy=fcfs", "--max-queued-tokens=4000",
    )  # fmt: skip
    with serving(model, tmp_path_factory.mktemp("admin") / "termination", *flags) as running:
        yield running


def text(served: Serving, name: str = NAME) -> str:
    asked = {"model": name, "prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    answer: str = served.answer(COMPLETION, asked)["choices"][0]["text"]
    return answer


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_that_slept_answers_as_before(served: Serving, level: int) -> None:
    before = text(served)
    assert served.ask("POST", f"/sleep?level={level}").status == 200
    assert json.loads(served.ask("GET", "/is_sleeping").body) == {"is_sleeping": True}
    assert served.ask("GET", "/ready").status == 503
    assert served.metric("pagefleet_engine_sleeping") == 1
    refused = served.post(COMPLETION, {"model": NAME, "prompt": "a"})
    assert (refused.status, refused.error["code"]) == (503, "sleeping")
    assert served.ask("POST", "/wake_up").status == 200
    assert served.ask("GET", "/ready").status == 200
    assert text(served) == before


def test_sleep_is_refused_while_requests_are_open(served: Serving) -> None:
    with served.open_stream(max_tokens=20000) as stream:
        stream.recv(4096)
        refused = served.ask("POST", "/sleep")
        assert (refused.status, refused.error["code"]) == (409, "requests_open")
        assert json.loads(served.ask("GET", "/is_sleeping").body) == {"is_sleeping": False}
    until(lambda: served.metric("pagefleet_num_requests_running") == 0, "the stream goes on")
    assert served.ask("POST", "/sleep?level=3").error["param"] == "level"


def test_adapters_come_and_go(served: Serving, root: Path) -> None:
    base = text(served)
    loaded = served.answer("/v1/load_lora_adapter", {"lora_name": "tuned", "lora_path": str(root / "tuned")})
    assert (loaded["id"], loaded["parent"]) == ("tuned", NAME)
    assert text(served, "tuned") != base == text(served)
    assert [m["id"] for m in json.loads(served.ask("GET", "/v1/models").body)["data"]] == [NAME, "tuned"]
    again = served.post("/v1/load_lora_adapter", {"lora_name": "tuned", "lora_path": "tuned"})
    assert (again.status, again.error["code"]) == (400, "adapter_exists")
    body = json.dumps({**LONG, "model": "tuned", "max_tokens": 20000, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", served.port)) as stream:
        stream.sendall(f"POST {COMPLETION} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        stream.recv(4096)
        busy = served.post("/v1/unload_lora_adapter", {"lora_name": "tuned"})
        assert (busy.status, busy.error["code"]) == (409, "adapter_in_use")
    until(lambda: served.metric("pagefleet_num_requests_running") == 0, "the stream goes on")
    assert served.answer("/v1/unload_lora_adapter", {"lora_name": "tuned"})["deleted"] is True
    assert served.post(COMPLETION, {"model": "tuned", "prompt": "a"}).status == 404
    assert served.post("/v1/unload_lora_adapter", {"lora_name": "tuned"}).status == 404


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"lora_path": "/etc"}, "lora_path"), ({"lora_path": "../.."}, "lora_path"), ({"lora_path": "out"}, "lora_path"),
        ({"lora_path": "missing"}, "lora_path"), ({"lora_path": "broken"}, "lora_path"),
        ({"lora_path": "a\x00b"}, "lora_path"), ({"lora_path": "x" * 4000}, "lora_path"),
        ({"lora_name": NAME}, "lora_name"), ({"lora_name": "../a"}, "lora_name"), ({"lora_name": None}, "lora_name"),
        ({"more": 1}, "more"),
    ],
)  # fmt: skip
def test_an_adapter_that_may_not_be_loaded_is_refused_by_name(
    served: Serving, change: dict[str, Any], param: str
) -> None:
    reply = served.post("/v1/load_lora_adapter", {"lora_name": "new", "lora_path": "tuned", **change})
    assert (reply.status, reply.error["param"]) == (400, param), reply.body


def test_n_and_priority_are_bounded_by_the_server(served: Serving) -> None:
    for change, param in (({"n": 3}, "n"), ({"best_of": 3}, "best_of"), ({"priority": 1}, "priority")):
        reply = served.post(COMPLETION, {"model": NAME, "prompt": "a", "max_tokens": 1, **change})
        assert (reply.status, reply.error["param"]) == (400, param)
    assert served.post(COMPLETION, {"model": NAME, "prompt": "a", "max_tokens": 1, "priority": 0}).status == 200


@pytest.mark.parametrize("where", ["body", "header"])
def test_a_request_beyond_its_time_answers_504(served: Serving, where: str) -> None:
    before = served.metric("pagefleet_request_success_total", finished_reason="deadline")
    asked = {**LONG, "max_tokens": 30000, **({"timeout": 0.3} if where == "body" else {})}
    headers = {"x-request-timeout": "0.3"} if where == "header" else {}
    began = time.monotonic()
    reply = served.ask("POST", COMPLETION, json.dumps(asked).encode(), headers)
    assert (reply.status, reply.error["code"]) == (504, "deadline_exceeded")
    assert time.monotonic() - began < 3
    assert served.metric("pagefleet_request_success_total", finished_reason="deadline") == before + 1
    until(lambda: served.metric("pagefleet_num_requests_running") == 0, "the engine goes on")
    bad = served.ask("POST", COMPLETION, json.dumps(asked).encode(), {"x-request-timeout": "nan"})
    assert (bad.status, bad.error["param"]) == (400, "x-request-timeout")


def test_a_stream_beyond_its_time_ends_with_an_error_event(served: Serving) -> None:
    reply = served.post(COMPLETION, {**LONG, "max_tokens": 30000, "timeout": 0.5, "stream": True})
    assert reply.status == 200
    events = [line for line in reply.body.splitlines() if line.startswith(b"data: ")]
    assert len(events) > 2
    assert json.loads(events[-1][6:])["error"]["code"] == "deadline_exceeded"
    assert b"[DONE]" not in reply.body


def test_a_full_queue_of_tokens_answers_429(served: Serving) -> None:
    replies: list[Reply] = []
    prompts = ["x" * 3000] * 16
    first = json.dumps({**LONG, "prompt": prompts, "max_tokens": 1}).encode()
    with socket.create_connection(("127.0.0.1", served.port)) as busy:
        busy.sendall(f"POST {COMPLETION} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(first)}\r\n\r\n".encode() + first)
        until(lambda: served.metric("pagefleet_num_requests_running") > 0, "nothing runs")
        replies.append(served.post(COMPLETION, {**LONG, "prompt": "y" * 3000, "max_tokens": 1}))
    assert [(reply.status, reply.error["code"]) for reply in replies] == [(429, "queue_full")]
    assert [reply.headers["x-pagefleet-error"] for reply in replies] == ["queue_full"]  # the gateway asks another pod
    assert int(replies[0].headers["retry-after"]) >= 1
    until(lambda: served.metric("pagefleet_num_requests_running") == 0, "the engine goes on")


def test_a_client_that_does_not_read_is_cut(served: Serving) -> None:
    before = served.metric("pagefleet_request_cancellations_total")
    body = json.dumps({**LONG, "max_tokens": 30000, "stream": True, "n": 2, "logprobs": 20}).encode()
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", served.port))
        lazy.sendall(f"POST {COMPLETION} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: served.metric("pagefleet_num_requests_running") > 0, "the request does not run")
        until(lambda: served.metric("pagefleet_num_requests_running") == 0, "the request goes on")
        assert served.metric("pagefleet_request_cancellations_total") == before + 1
        assert served.metric("pagefleet_request_success_total", finished_reason="abort") >= 1


def test_a_client_that_leaves_a_whole_answer_is_noticed_within_a_second(served: Serving) -> None:
    before = served.metric("pagefleet_request_cancellations_total")
    body = json.dumps({**LONG, "max_tokens": 30000}).encode()
    with socket.create_connection(("127.0.0.1", served.port)) as left:
        left.sendall(f"POST {COMPLETION} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: served.metric("pagefleet_num_requests_running") == 1, "the request does not run")
    began = time.monotonic()
    until(lambda: served.metric("pagefleet_num_requests_running") == 0, "the request goes on")
    assert time.monotonic() - began < 1
    assert served.metric("pagefleet_request_cancellations_total") == before + 1


def test_adapters_are_not_loaded_unless_allowed_and_keys_guard_all_but_probes(model: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first\n\nsecond\n")
    flags, extra = (f"--api-key-file={keys}",), {"PAGEFLEET_API_KEYS": "third, fourth"}

    def status(served: Serving, key: str | None, method: str = "GET", path: str = "/v1/models") -> int:
        return served.ask(method, path, headers={"Authorization": f"Bearer {key}"} if key else {}).status

    with serving(model, tmp_path / "termination", *flags, extra=extra) as served:
        assert [status(served, key) for key in (None, "wrong", "first", "second", "third", "fourth")] == [
            401, 401, 200, 200, 200, 200,
        ]  # fmt: skip
        for path in ("/health", "/ready", "/metrics"):
            assert status(served, None, path=path) == 200
        for path in ("/drain", "/sleep", "/wake_up", "/v1/load_lora_adapter", "/v1/completions", "/tokenize", "/x"):
            assert status(served, None, "POST", path) == 401
        refused = served.ask("GET", "/v1/models")
        assert refused.error["type"] == "authentication_error"
        with served.client("first") as client:
            assert [one.id for one in client.models.list()] == [NAME]
        body = json.dumps({"lora_name": "a", "lora_path": "b"}).encode()
        denied = served.ask("POST", "/v1/load_lora_adapter", body, {"Authorization": "Bearer first"})
        assert (denied.status, denied.error["code"]) == (403, "adapters_not_allowed")
        fresh = tmp_path / "fresh"
        fresh.write_text("new\n")
        fresh.replace(keys)
        assert [status(served, key) for key in ("new", "first", "third")] == [200, 401, 200]


def test_drain_over_http_is_the_drain_of_sigterm(model: str, tmp_path: Path) -> None:
    with serving(model, tmp_path / "termination") as served:
        with served.open_stream(max_tokens=2500) as stream:
            received = stream.recv(4096)
            assert served.ask("POST", "/drain").status == 202
            assert served.ask("GET", "/ready").status == 503
            while not received.endswith(b"0\r\n\r\n"):
                data = stream.recv(65536)
                assert data, "the stream was cut"
                received += data
        assert b"data: [DONE]" in received
        assert served.process.wait(30) == 0


def test_templates_of_the_server_and_where_trusted_of_requests(model: str, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages[0].content }} with {{ word }}")
    asked = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"word": "this"}}

    def prompt(served: Serving, **change: Any) -> str:
        tokens = served.answer("/tokenize", {**asked, **change})["tokens"]
        rendered: str = served.answer("/detokenize", {"tokens": tokens})["prompt"]
        return rendered

    flags = (f"--chat-template={template}", "--trust-request-chat-template")
    with serving(model, tmp_path / "termination", *flags) as served:
        assert prompt(served) == "hi with this"
        assert prompt(served, chat_template="{{ word }}!") == "this!"
        asked["chat_template"] = "{{ messages.__class__.__mro__ }}{% for a in range(10**9) %}{% endfor %}"
        chat = {"model": NAME, "max_tokens": 1, **asked}
        for path, document in (("/tokenize", asked), ("/v1/chat/completions", chat)):
            refused = served.post(path, document)
            assert (refused.status, refused.error["param"]) == (400, "messages"), refused.body


def test_what_is_told_of_the_server(served: Serving) -> None:
    assert json.loads(served.ask("GET", "/version").body)["version"]
    document = json.loads(served.ask("GET", "/openapi.json").body)
    assert document["openapi"].startswith("3.1")
    assert served.metric("pagefleet_engine_info", kernels="native", architecture="llama") == 1
    served.answer(COMPLETION, {**LONG, "prompt": "some prompt", "max_tokens": 4})
    for name in (
        "pagefleet_step_seconds_count", "pagefleet_batch_size_count", "pagefleet_request_prompt_tokens_count",
        "pagefleet_request_generation_tokens_count", "pagefleet_inter_token_latency_seconds_count",
    ):  # fmt: skip
        assert served.metric(name) > 0
    assert served.metric("pagefleet_step_seconds_count", phase="decode") > 0
