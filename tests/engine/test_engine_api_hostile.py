"""Shapes of known attacks on inference servers: each gets a 4xx in OpenAI's shape, and meanwhile others are served
without a pause. Against a real engine.
"""

from __future__ import annotations

import contextlib
import gc
import gzip
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.engine.api_process import NAME, Serving, make_model, serving, until

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
STALL_SECONDS = 0.1
MANY = 1_000_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    with serving(make_model(folder / "model"), folder / "termination", "--max-model-len=2048") as running:
        yield running


@pytest.fixture(scope="module")
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("trusting")
    with serving(make_model(folder / "model"), folder / "termination", "--trust-request-chat-template") as running:
        yield running


def waits(pid: int) -> dict[str, float]:
    """Return the seconds for which each thread of a process was ready to run and had no processor (schedstat, second field)."""
    seconds = {}
    for folder in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended
            seconds[folder.name] = int((folder / "schedstat").read_text().split()[1]) / 1e9
    return seconds


def waited(now: dict[str, float], before: dict[str, float], thread: int) -> float:
    """Return for how long a thread waited between two readings, and the longest wait of the others beside it."""
    longer = {name: seconds - before.get(name, 0.0) for name, seconds in now.items()}
    return longer.pop(str(thread), 0.0) + max(longer.values(), default=0.0)


@contextmanager
def watched(served: Serving) -> Iterator[list[float]]:
    """Ask /health again and again on a connection that stays open, and yield the seconds of each answer.

    The seconds leave out the time for which the thread that answers or the one that asks was ready to run and had no
    processor, because other work on the machine had it. Another thread of the same process may have waited with Python's
    lock in its hands, so that they waited too: the longest such wait is left out as well.
    """
    durations: list[float] = []
    done = threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
        threads = {served.process.pid: served.process.pid, os.getpid(): threading.get_native_id()}
        while not done.is_set():
            # Read before the clock. A wait between the two would be in the time, and in no difference of these.
            before = {pid: waits(pid) for pid in threads}
            began = time.monotonic()
            connection.request("GET", "/health")
            connection.getresponse().read()
            took = time.monotonic() - began
            durations.append(took - sum(waited(waits(pid), before[pid], thread) for pid, thread in threads.items()))
            time.sleep(0.002)
        connection.close()

    gc.collect()  # this process's own collections would be measured as well
    gc.freeze()
    thread = threading.Thread(target=ask)
    thread.start()
    try:
        until(lambda: len(durations) > 3, "no answer from /health")
        yield durations
    finally:
        done.set()
        thread.join()


def completion(**change: Any) -> bytes:
    return json.dumps({"model": NAME, "prompt": "a", "max_tokens": 1, **change}).encode()


def raw(text: str) -> bytes:
    """Return the body of a completion with a parameter that json.dumps would not write."""
    return b'{"model":"tiny","prompt":"a","max_tokens":1,' + text.encode() + b"}"


def chat(**change: Any) -> bytes:
    return json.dumps(
        {"model": NAME, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **change}
    ).encode()


BODIES = {
    "n": (COMPLETION, completion(n=10**9)),
    "best_of": (COMPLETION, completion(best_of=10**6)),
    "logprobs": (COMPLETION, completion(logprobs=10**6)),
    "prompt_logprobs": (COMPLETION, completion(prompt_logprobs=10**6)),
    "huge integer": (COMPLETION, raw('"max_tokens":' + "9" * 4000)),
    "1e308": (COMPLETION, raw('"temperature":1e308')),
    "1e999": (COMPLETION, raw('"temperature":1e999')),
    "NaN": (COMPLETION, raw('"top_p":NaN')),
    "Infinity": (COMPLETION, raw('"min_p":-Infinity')),
    "negative": (COMPLETION, completion(max_tokens=-1)),
    "temperature below 0": (COMPLETION, completion(temperature=-0.1)),
    "boolean for a number": (COMPLETION, completion(top_k=True)),
    "logit_bias of 10^5": (COMPLETION, completion(logit_bias={str(i): 1 for i in range(10**5)})),
    "logit_bias beyond the vocabulary": (COMPLETION, completion(logit_bias={"999999999": 1})),
    "stop_token_ids beyond the vocabulary": (COMPLETION, completion(stop_token_ids=[999999])),
    "logit_bias with strange digits": (COMPLETION, completion(logit_bias={"\N{ARABIC-INDIC DIGIT FIVE}": 1})),
    "stops": (COMPLETION, completion(stop=["a" * 1024] * 1000)),
    "stop ids": (COMPLETION, completion(stop_token_ids=[1] * 10**5)),
    "empty prompt": (COMPLETION, completion(prompt="")),
    "empty prompts": (COMPLETION, completion(prompt=["", ""])),
    "many prompts": (COMPLETION, completion(prompt=["a"] * 10**5)),
    "many tokens": (COMPLETION, b'{"model":"tiny","prompt":[' + b"1," * (MANY - 1) + b"1]}"),
    "many lists": (COMPLETION, b'{"model":"tiny","prompt":[' + b"[]," * 600_000 + b"[]]}"),
    "many keys": (COMPLETION, b"{" + b",".join(b'"k%d":1' % i for i in range(150_000)) + b"}"),
    "long text": (COMPLETION, completion(prompt="ab " * 600_000)),
    "long braces": (COMPLETION, completion(prompt="{[" * 900_000)),
    "unclosed string": (COMPLETION, b'{"model":"' + b"[" * 1_900_000),
    "escapes": (COMPLETION, b'{"model":"' + b'[\\"' * 600_000),
    "deep lists": (COMPLETION, b'{"model":"tiny","prompt":' + b"[" * 1_000_000),
    "deep objects": (COMPLETION, b'{"a":' * 200_000),
    "deep and closed": (COMPLETION, b'{"model":"tiny","prompt":' + b"[" * 500 + b"]" * 500 + b"}"),
    "bad UTF-8": (COMPLETION, b'{"model":"tiny","prompt":"\xff\xfe"}'),
    "UTF-16": (COMPLETION, completion().decode().encode("utf-16")),
    "lone surrogate": (COMPLETION, raw('"user":"\\ud800"')),
    "null byte in the model": (COMPLETION, completion(model="tiny\x00")),
    "too large": (COMPLETION, b" " * (2 * 2**20 + 1)),
    "user": (COMPLETION, completion(user="u" * 10**6)),
    "template": (CHAT, chat(chat_template="{% for i in range(10**9) %}{% endfor %}")),
    "template kwargs": (CHAT, chat(chat_template_kwargs={"messages": [], "chat_template": "x"})),
    "deep kwargs": (CHAT, chat(chat_template_kwargs={"a": [[[[[[[[[[]]]]]]]]]]})),
    "many messages": (CHAT, chat(messages=[{"role": "user", "content": ""}] * 20_000)),
    "no messages": (CHAT, chat(messages=[])),
    "message without content": (CHAT, chat(messages=[{"role": "user"}])),
    "image": (CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": "file:///"}]}])),
    "many parts": (CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 40_000}])),
    "regex": (CHAT, chat(guided_regex="a" * 5000)),
    "regex syntax": (CHAT, chat(guided_regex="[" * 1000)),
    "schema reference": (CHAT, chat(guided_json={"$ref": "file:///etc/passwd"})),
    "deep schema": (CHAT, chat(guided_json=json.loads('{"items":' * 90 + "{}" + "}" * 90))),
    "long schema": (CHAT, chat(guided_json={"enum": ["x" * 100_000]})),
    "choices": (CHAT, chat(guided_choice=["a"] * 10**5)),
    "tools": (CHAT, chat(tools=[{"type": "function", "function": {"name": f"f{i}"}} for i in range(1000)])),
    "tool pattern": (CHAT, chat(tool_choice="required", tools=[{"type": "function", "function": {
        "name": "f", "parameters": {"properties": {"a": {"type": "string", "pattern": "(" * 500}}}}}])),
    "tool type": (CHAT, chat(tool_choice="required", tools=[{"type": "function", "function": {
        "name": "f", "parameters": {"properties": {"a": {"type": "something"}}}}}])),
    "schema type": (CHAT, chat(guided_json={"properties": {"a": {"type": ["string", {"a": []}]}}})),
    "schema that is none": (CHAT, chat(guided_json="{")),
    "schema of patterns": (CHAT, chat(guided_json={
        "type": "string", "allOf": [{"pattern": f"a{{{i}}}b*"} for i in range(200)]})),
    "nested regex": (CHAT, chat(guided_regex="(" * 2000 + "a" + ")" * 2000)),
    "deep grammar": (CHAT, chat(guided_grammar="root ::= " + "(" * 5000)),
    "endless grammar": (CHAT, chat(guided_grammar="start: start")),
    "prompt_embeds": (COMPLETION, completion(prompt_embeds="gASVAAAAAAAAAA==")),
    "template of /tokenize": ("/tokenize", json.dumps({
        "messages": [{"role": "user", "content": "a"}], "chat_template": "{{ 'a' * 10**9 }}"}).encode()),
    "kwargs of /tokenize": ("/tokenize", json.dumps({
        "messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": ["a"] * 10**5}}).encode()),
    "embedding inputs": ("/v1/embeddings", json.dumps({"model": NAME, "input": ["a"] * 10**4}).encode()),
    "detokenize": ("/detokenize", json.dumps({"tokens": [-1]}).encode()),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_an_attack_is_refused_and_nobody_else_waits(served: Serving, name: str) -> None:
    path, body = BODIES[name]
    with watched(served) as durations:
        reply = served.ask("POST", path, body)
        count = len(durations)
        until(lambda: len(durations) > count, "no answer from /health")
    assert 400 <= reply.status < 500, reply.body[:300]
    assert set(reply.error) == {"message", "type", "param", "code"}
    assert len(reply.body) < 2000
    assert max(durations) < STALL_SECONDS, f"/health took {max(durations) * 1000:.0f} ms"


def test_what_looks_strange_and_is_right_is_answered(served: Serving) -> None:
    for body in (
        completion(prompt="null \x00 byte"),
        completion(prompt="{[" * 500),
        completion(user="\x00", seed=-(2**63)),
        completion(stop="\x00", temperature=1e-300),
        raw('"top_p":1e-300'),
        completion(logit_bias={"5": -100}, top_k=2**31 - 1),
    ):
        assert served.ask("POST", COMPLETION, body).status == 200


@pytest.mark.parametrize(
    ("path", "document"),
    [
        (COMPLETION, {"prompt": ["x" * 1500] * 8, "echo": True, "logprobs": 20, "max_tokens": 1}),
        (COMPLETION, {"prompt": "x", "n": 4, "logprobs": 20, "max_tokens": 500, "ignore_eos": True}),
        (COMPLETION, {"prompt": ["x" * 1500] * 8, "echo": True, "logprobs": 20, "max_tokens": 1, "stream": True}),
        ("/tokenize", {"prompt": "ab " * 300_000, "return_token_strs": True}),
        ("/detokenize", {"tokens": [5] * 190_000}),
        ("/v1/embeddings", {"input": ["x" * 100] * 256}),
        (COMPLETION, {"prompt": "a", "guided_regex": "((((a{0,1000}){0,1000}){0,1000}){0,1000})" * 20}),
    ],
)
def test_a_large_answer_keeps_nobody_waiting(served: Serving, path: str, document: dict[str, Any]) -> None:
    with watched(served) as durations:
        assert served.post(path, {"model": NAME, **document}).status == 200
    assert max(durations) < STALL_SECONDS, f"/health took {max(durations) * 1000:.0f} ms"


def test_a_body_that_never_ends_answers_408(served: Serving) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = slow.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_timeout"


def test_a_body_of_unknown_length_is_cut_at_the_limit(served: Serving) -> None:
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    with watched(served) as durations, socket.create_connection(("127.0.0.1", served.port), timeout=60) as endless:
        endless.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):  # cut while it is still sent
            for _ in range(1000):
                endless.sendall(chunk)
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = endless.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 ") or not answer, answer[:200]
    assert served.ask("GET", "/health").status == 200
    assert max(durations) < STALL_SECONDS, f"/health took {max(durations) * 1000:.0f} ms"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 9999999999 }}",
        "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
    ],
)
def test_a_template_that_is_let_in_is_bounded_all_the_same(trusting: Serving, template: str) -> None:
    with watched(trusting) as durations:
        reply = trusting.ask("POST", CHAT, chat(chat_template=template))
    assert (reply.status, reply.error["param"]) == (400, "messages"), reply.body[:300]
    assert max(durations) < STALL_SECONDS, f"/health took {max(durations) * 1000:.0f} ms"


def test_a_head_that_never_ends_is_cut_and_others_are_served(served: Serving) -> None:
    slow = [socket.create_connection(("127.0.0.1", served.port), timeout=40) for _ in range(200)]
    try:
        with watched(served) as durations:
            for connection in slow:
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-A: ")
            answer = slow[0].recv(4096)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "head_timeout"
        assert max(durations) < STALL_SECONDS
        until(lambda: all(connection.recv(4096) == b"" for connection in slow[:1]), "the connection stays open")
    finally:
        for connection in slow:
            connection.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-A: a\r\n" * 1000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
    ],
)
def test_a_head_that_is_none_answers_400(served: Serving, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(head)
        assert connection.recv(65536)[:13] in (b"HTTP/1.0 400 ", b"HTTP/1.1 400 ")
    assert served.ask("GET", "/health").status == 200


def test_a_compressed_bomb_is_refused(served: Serving) -> None:
    body = gzip.compress(b" " * (64 << 20))
    with watched(served) as durations:
        reply = served.ask("POST", COMPLETION, body, {"Content-Encoding": "gzip"})
    assert (reply.status, reply.error["code"]) == (415, "unsupported_encoding")
    assert max(durations) < STALL_SECONDS
