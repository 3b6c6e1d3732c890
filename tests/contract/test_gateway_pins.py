"""A pinned document behind a real Envoy with two real engines: the pin and the questions about the document reach the same pod,
which has its pages still when everything else was evicted; and a pin is its client's own.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import yaml
from support.engine.api_process import NAME, make_model
from support.gateway.engine_pods import pods
from support.gateway.fleet import Fleet, running, until

DOCUMENT = "".join(chr(97 + index % 26) for index in range(1024))  # one token each: 64 full pages
FLAGS = ("--num-pages=400", "--page-size=16", "--max-model-len=2400")
KEYS = {"one": "sk-one-0123456789", "two": "sk-two-0123456789"}


async def ask(fleet: Fleet, method: str, path: str, body: dict[str, Any] | None = None, who: str = "one") -> Any:
    headers = {"authorization": f"Bearer {KEYS[who]}"}
    async with fleet.http.request(method, f"{fleet.url}/team/chat/v1{path}", json=body, headers=headers) as response:
        return response.status, await response.json()


async def cached(fleet: Fleet, question: str) -> int:
    """Ask, and return how many tokens came from the cache once the request is over for the gateway, too: its log line has come."""
    before = len(fleet.lines)
    body = {"model": NAME, "prompt": f"{DOCUMENT} {question}", "max_tokens": 1}
    _, answer = await ask(fleet, "POST", "/completions", body)
    tokens: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    await until(lambda: len(fleet.lines) > before)
    return tokens


async def push_out(fleet: Fleet) -> None:
    """Send other prompts, with three times as many tokens as both engines hold."""
    for number in range(0, 20, 2):
        bodies = [{"model": NAME, "prompt": f"{one:03} " * 500, "max_tokens": 1} for one in (number, number + 1)]
        replies = await asyncio.gather(*(ask(fleet, "POST", "/completions", body) for body in bodies))
        assert [status for status, _ in replies] == [200, 200]


async def test_questions_about_a_pinned_document_reach_the_pod_that_has_it(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump([{"name": name, "key": key} for name, key in KEYS.items()]))
    async with running(api_keys_file=file) as fleet, pods(fleet, make_model(tmp_path / "m"), tmp_path, flags=FLAGS):
        pin = {"model": NAME, "prompt": DOCUMENT, "ttl_seconds": 300}
        status, made = await ask(fleet, "POST", "/cache/pin", pin)
        assert (status, made["pinned_tokens"]) == (200, 1024)
        await push_out(fleet)
        await until(lambda: len(fleet.lines) == 21)
        assert [await cached(fleet, f"question {number}") for number in range(6)] == [1024] * 6
        # Either pod may answer these; only one of them has the pin, and only for the client that made it.
        lists = [(await ask(fleet, "GET", "/cache/pins", who=who))[1]["data"] for who in KEYS for _ in range(8)]
        assert all(found in ([], [made]) for found in lists[:8]) and lists[8:] == [[]] * 8
        name = f"/cache/pins/{made['id']}"
        assert {(await ask(fleet, "DELETE", name, who="two"))[0] for _ in range(8)} == {404}
        assert {(await ask(fleet, "DELETE", name))[0] for _ in range(30)} == {200, 404}
        await push_out(fleet)
        assert await cached(fleet, "again") == 0
