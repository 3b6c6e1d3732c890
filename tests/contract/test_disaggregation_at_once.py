"""Prefill and decode in pods of their own where decode pods compute no prompt (SGLang), with a real Envoy, the real picker and real routing
sidecars before engines that meet in bootstrap rooms.

Protects that both legs of every request meet in a room that no other request has, at one revision. A prefill pod that fails costs no
request while another one is ready; without any the client gets 503. Both legs end when the client leaves. A client cannot name a
room.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest
from support.gateway.bootstrap_engines import MEETING, Pairs, SGLang
from support.gateway.fleet import CANARY, STABLE, Fleet, running, until

from pagefleet_contract.headers import PREFILLED_HEADER


@pytest.fixture
async def pairs() -> AsyncIterator[Pairs]:
    async with running() as fleet:
        fleet.serve((STABLE, 100))
        yield Pairs(fleet)


def counted(fleet: Fleet, outcome: str) -> float:
    labels = {"namespace": "team", "service": "chat", "revision": STABLE, "outcome": outcome}
    return fleet.gateway.metrics.registry.get_sample_value("pagefleet_gateway_prefills_total", labels) or 0.0


@pytest.mark.parametrize("headers_first", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_both_legs_meet(pairs: Pairs, stream: bool, headers_first: bool) -> None:
    decode, prefill = await pairs.decode(STABLE, headers_first=headers_first), await pairs.prefill(STABLE)
    options = {"stream_options": {"include_usage": True}} if stream else {}
    for _ in range(2):
        status, by, headers = await pairs.ask(stream=stream, max_tokens=50, **options)
        assert (status, by, headers[PREFILLED_HEADER]) == (200, prefill.id, "remote")
    rooms = [body["bootstrap_room"] for body in decode.bodies]
    assert rooms == [body["bootstrap_room"] for body in prefill.bodies] and len(set(rooms)) == 2
    assert all(0 <= room < 1 << 63 for room in rooms)
    assert [body["bootstrap_host"] for body in (*decode.bodies, *prefill.bodies)] == [prefill.host] * 4
    assert {body["max_tokens"] for body in (*decode.bodies, *prefill.bodies)} == {50}
    await until(lambda: counted(pairs.fleet, "remote") == 2)


async def both_prefills(pairs: Pairs, **first: object) -> tuple[SGLang, SGLang]:
    """Return a bad and a good prefill pod. Requests meet either of them first."""
    return await pairs.prefill(STABLE, **first), await pairs.prefill(STABLE)


@pytest.mark.parametrize(
    ("fault", "outcome"), [({"status": 503}, "failed"), ({"status": 429}, "failed"), ({"cuts": True}, "unreached")]
)
async def test_a_prefill_pod_that_fails_costs_no_request_while_another_is_there(
    pairs: Pairs, fault: dict[str, object], outcome: str
) -> None:
    decode = await pairs.decode(STABLE, headers_first=True)
    bad, good = await both_prefills(pairs, **fault)
    outcomes = list[str]()
    while outcome not in outcomes and len(outcomes) < 100:
        status, by, headers = await pairs.ask()
        assert (status, by) == (200, good.id)
        outcomes.append(headers[PREFILLED_HEADER])
    assert outcome in outcomes and bad.bodies
    assert len({body["bootstrap_room"] for body in decode.bodies}) == len(decode.bodies)  # a new room for each attempt
    # Legs whose prefill pod failed have ended.
    await until(lambda: decode.left == len(decode.bodies) - len(outcomes))


async def test_a_prefill_pod_that_is_gone_costs_no_request(pairs: Pairs) -> None:
    await pairs.decode(STABLE)
    gone, good = await both_prefills(pairs)
    await gone.die()
    answers = [await pairs.ask() for _ in range(4)]
    assert [(status, by) for status, by, _ in answers] == [(200, good.id)] * 4
    assert {headers[PREFILLED_HEADER] for _, _, headers in answers} <= {"remote", "unreached", "avoided"}


async def test_without_prefill_pods_the_client_is_told(pairs: Pairs) -> None:
    decode = await pairs.decode(STABLE)
    status, text, headers = await pairs.ask()
    assert (status, json.loads(text)["error"]["code"]) == (503, "prefill_unavailable")
    assert headers["retry-after"] and decode.bodies == []
    prefill = await pairs.prefill(STABLE)
    assert (await pairs.ask())[:2] == (200, prefill.id)


async def test_a_prompt_that_takes_too_long_is_given_up_at_both_pods(pairs: Pairs) -> None:
    """And not computed a second time by the other prefill pod."""
    pairs.timeout = 0.3
    pairs.fleet.serve((STABLE, 100), retries=0)
    decode = await pairs.decode(STABLE)
    slow = [await pairs.prefill(STABLE, gate=asyncio.Event()) for _ in range(2)]
    status, _, headers = await pairs.ask()
    assert (status, headers[PREFILLED_HEADER]) == (503, "timeout")
    await until(lambda: sum(one.left for one in slow) == decode.left == 1)
    assert sum(len(one.bodies) for one in slow) == len(decode.bodies) == 1


async def test_a_request_that_is_wrong_is_refused_once(pairs: Pairs) -> None:
    """By the prefill pod first, or by the decode engine first."""
    await pairs.decode(STABLE)
    prefill = await pairs.prefill(STABLE, status=400)
    status, text, headers = await pairs.ask()
    assert (status, json.loads(text)["error"]["message"], headers[PREFILLED_HEADER]) == (400, "unavailable", "refused")
    assert len(prefill.bodies) == 1


async def test_what_the_engine_refuses_by_itself_does_not_wait_for_the_prefill_pod(pairs: Pairs) -> None:
    pairs.timeout = 60.0
    await pairs.decode(STABLE, status=400)
    pairs.sidecars[0].blame_seconds = 60.0
    prefill = await pairs.prefill(STABLE, gate=asyncio.Event())
    began = time.monotonic()
    assert (await pairs.ask())[0] == 400
    assert time.monotonic() - began < 30.0
    await until(lambda: prefill.left == 1)


async def test_an_engine_that_is_gone_is_seen_through_its_sidecar(pairs: Pairs) -> None:
    gone = await pairs.decode(STABLE)
    await pairs.prefill(STABLE)
    await gone.die()
    assert (await pairs.ask())[0] == 503
    await until(lambda: pairs.fleet.gateway.ledger.outliers.count(time.monotonic()) == 1)


async def test_a_client_that_leaves_ends_both_legs(pairs: Pairs) -> None:
    pairs.timeout = 60.0
    decode, prefill = await pairs.decode(STABLE, headers_first=True), await pairs.prefill(STABLE, gate=asyncio.Event())
    asking = asyncio.create_task(pairs.ask())
    await until(lambda: len(prefill.bodies) == len(decode.bodies) == 1)
    asking.cancel()
    await until(lambda: prefill.left == decode.left == 1)


async def test_both_legs_are_of_one_revision(pairs: Pairs) -> None:
    pairs.fleet.serve((STABLE, 50), (CANARY, 50), canary=CANARY)
    for revision in (STABLE, CANARY):
        await pairs.decode(revision)
        await pairs.prefill(revision)
    seen = set()
    for _ in range(24):
        status, by, headers = await pairs.ask()
        revision = headers["x-pagefleet-revision"]
        assert status == 200 and by.startswith(f"{revision}/")
        seen.add(revision)
    assert seen == {STABLE, CANARY}


@pytest.mark.parametrize(("name", "value"), [("n", 2), ("best_of", 2), ("echo", True)])
async def test_what_two_engines_cannot_serve_is_refused_by_name(pairs: Pairs, name: str, value: object) -> None:
    decode, prefill = await pairs.decode(STABLE), await pairs.prefill(STABLE)
    status, text, _ = await pairs.ask(**{name: value})
    assert status == 400 and f"`{name}`" in json.loads(text)["error"]["message"]
    assert decode.bodies == prefill.bodies == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_a_client_names_no_room(pairs: Pairs, path: str) -> None:
    decode = await pairs.decode(STABLE)
    await pairs.prefill(STABLE)
    body = {"model": "smol", "messages": [{"role": "user", "content": "hi"}], "bootstrap_host": "10.0.0.9"}
    sent = json.dumps(body | {"bootstrap_port": 1, "disagg_prefill_dp_rank": 3}).replace("host", "\\u0068ost")
    async with pairs.fleet.http.post(
        f"{pairs.fleet.url}/team/chat{path}", data=sent, headers={"content-type": "application/json"}
    ) as response:
        await response.read()
    (seen,) = decode.bodies
    assert "10.0.0.9" not in seen.values() and "disagg_prefill_dp_rank" not in seen
    assert (set(seen) & MEETING == MEETING) is (path == "/v1/chat/completions")
