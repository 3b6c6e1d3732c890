"""A full engine's 429 sends the request to another pod, behind a real Envoy; any other 429 is the client's answer.

A full engine is known by our header `x-pagefleet-error: queue_full`, and by the words in which TGI states it.

Protects that the pod which was full is neither ejected nor counted as failed, that a full canary gets no error where the
stable revision answers, and that the client gets the 429 when every pod is full.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator

import pytest
from support.gateway.fleet import CANARY, STABLE, Engine, Fleet, running, until

FULL = {"status": 429, "error_header": "queue_full"}
# As TGI answers: to a request that asks for no stream, and in the first event of a stream in its own and in OpenAI's form.
TGI = {"error": "Model is overloaded", "error_type": "overloaded"}
TGI_FULL: dict[str, dict[str, object]] = {
    "answer": {"status": 429, "refusal": TGI},
    "event": {"headers": "error", "failure": b"data:" + json.dumps(TGI).encode() + b"\n\n"},
    "openai": {
        "headers": "error",
        "failure": b'data: {"error": {"message": "Model is overloaded", "http_status_code": 422}}\n\n',
    },
}


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running() as fleet:
        yield fleet


async def codes(fleet: Fleet, count: int, **body: object) -> Counter[int]:
    """Send requests one after another. Each is over for the gateway, too, before the next one: its log line has come. A canary
    that has answered none has only a few requests in flight, and the others would go to the stable revision."""
    document = {"model": "smol", "messages": [{"role": "user", "content": "hello"}], **body}
    statuses = Counter[int]()
    for _ in range(count):
        before = len(fleet.lines)
        async with fleet.http.post(f"{fleet.url}/team/chat/v1/chat/completions", json=document) as response:
            await response.read()
            statuses[response.status] += 1
        await until(lambda lines=before: len(fleet.lines) > lines)
    return statuses


def ejected(fleet: Fleet) -> int:
    return sum(line.endswith(" 1.0") for line in metric(fleet, "pagefleet_gateway_pods_ejected "))


def metric(fleet: Fleet, name: str) -> list[str]:
    return [line for line in fleet.gateway.metrics.text().decode().splitlines() if line.startswith(name)]


@pytest.mark.parametrize(
    ("stream", "full_as"), [(False, FULL), (True, FULL), *((name != "answer", TGI_FULL[name]) for name in TGI_FULL)]
)
async def test_another_pod_answers_and_the_full_one_is_not_punished(
    fleet: Fleet, stream: bool, full_as: dict[str, object]
) -> None:
    full = await fleet.engine(STABLE, **full_as)
    free = await fleet.engine(STABLE)
    fleet.serve((STABLE, 100))
    assert await codes(fleet, 20, stream=stream) == {200: 20}
    assert len(free.requests) == 20 and 3 <= len(full.requests) < 20  # it is tried again and again
    assert ejected(fleet) == 0
    slices = await fleet.windows(requests=20)
    assert (sum(int(str(one["requests"])) for one in slices), sum(int(str(one["errors"])) for one in slices)) == (20, 0)


@pytest.mark.parametrize(("stream", "full_as"), [(False, FULL), (False, TGI_FULL["answer"]), (True, TGI_FULL["event"])])
async def test_where_every_pod_is_full_the_client_gets_the_429(
    fleet: Fleet, stream: bool, full_as: dict[str, object]
) -> None:
    engines: list[Engine] = [await fleet.engine(STABLE, **full_as) for _ in range(2)]
    fleet.serve((STABLE, 100), retries=1)
    question = {"model": "smol", "messages": [{"role": "user", "content": "hello"}], "stream": stream}
    status, body, headers = await fleet.chat(json=question)
    assert status == 429 and headers["retry-after"] == "1" and body["error"]
    assert [len(engine.requests) for engine in engines] == [1, 1]
    await until(lambda: len(fleet.lines) == 1)
    assert ejected(fleet) == 0


CLIENTS: tuple[dict[str, object], ...] = (
    {},
    {"error_header": "rate_limit_exceeded"},
    {"refusal": {"error": "Too many requests of this user", "error_type": "rate_limited"}},
    {"refusal": {"error": {"message": "the words Model is overloaded", "type": "overloaded", "code": "slow_down"}}},
    {"refusal": {"message": "Model is overloaded", "detail": {"error_type": "overloaded"}}},
    {"refusal": {**TGI, "filler": "x" * 5000}},  # longer than any refusal of TGI
    {"refusal": {}},
)


@pytest.mark.parametrize("answer", CLIENTS)
async def test_a_429_of_an_engine_that_is_not_full_is_the_clients(fleet: Fleet, answer: dict[str, object]) -> None:
    engines = [await fleet.engine(STABLE, status=429, **answer) for _ in range(2)]
    fleet.serve((STABLE, 100))
    status, body, _ = await fleet.chat()
    assert status == 429 and body == answer.get("refusal", body)
    assert sorted(len(engine.requests) for engine in engines) == [0, 1]


async def test_a_full_canary_has_no_error_where_stable_answers(fleet: Fleet) -> None:
    full = await fleet.engine(CANARY, **FULL)
    free = await fleet.engine(STABLE)
    fleet.serve((STABLE, 50), (CANARY, 50), canary=CANARY)
    assert await codes(fleet, 20) == {200: 20}
    assert len(full.requests) == 10 and len(free.requests) == 20
    slices = await fleet.windows(requests=10)
    assert not any(one["errors"] or one.get("retried") for one in slices)
    canary = [one for one in slices if one["revision"] == CANARY]
    assert not any(one["requests"] for one in canary)  # what it did not answer is neither good nor bad
    assert ejected(fleet) == 0
