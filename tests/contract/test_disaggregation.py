"""Prefill and decode in pods of their own, with a real Envoy, the real picker and real routing sidecars before engines that keep to
vLLM's `kv_transfer_params`.

Protects that a long prompt is computed by a prefill pod and its answer by a decode pod of the same revision, also through a canary, a
retry and a mirrored copy; that nothing of the prefill pods can fail a request; that the time to first token covers both legs; and that
clients choose neither a prefill pod nor where KV pages come from.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from support.gateway.fleet import CANARY, STABLE, Fleet, running, until
from support.gateway.split_engines import LONG, PARAMS, Split

from pagefleet_contract.headers import PREFILL_HEADER, PREFILLED_HEADER


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with running() as fleet:
        fleet.serve((STABLE, 100))
        yield fleet


def counted(fleet: Fleet, outcome: str, revision: str = STABLE) -> float:
    labels = {"namespace": "team", "service": "chat", "revision": revision, "outcome": outcome}
    return fleet.gateway.metrics.registry.get_sample_value("pagefleet_gateway_prefills_total", labels) or 0.0


async def test_a_prefill_pod_computes_a_long_prompt_and_the_decode_pod_fetches_it(fleet: Fleet) -> None:
    split = Split(fleet)
    decode, prefill = await split.decode(STABLE), await split.prefill(STABLE)
    status, by, headers = await split.ask(stream_options={"include_usage": True}, min_tokens=2, max_tokens=50)
    assert (status, by, headers[PREFILLED_HEADER]) == (200, prefill.id, "remote")
    assert decode.computed == [] and len(decode.fetched) == 1 and prefill.pages == {}
    (asked,) = prefill.bodies
    assert (asked["max_tokens"], asked["stream"]) == (1, False)
    assert decode.bodies[0]["max_tokens"] == 50 and decode.bodies[0]["stream"] is True
    await until(lambda: counted(fleet, "remote") == 1)


async def test_a_short_prompt_and_a_cached_one_stay_in_the_decode_pod(fleet: Fleet) -> None:
    split = Split(fleet)
    decode, prefill = await split.decode(STABLE), await split.prefill(STABLE)
    _, by, headers = await split.ask("hello")
    assert by == decode.id and PREFILLED_HEADER not in headers
    assert (await split.ask())[1] == prefill.id
    assert (await split.ask())[1] == decode.id  # its KV pages are there since the request before
    assert len(prefill.bodies) == 1


async def test_the_time_to_first_token_covers_both_legs(fleet: Fleet) -> None:
    split = Split(fleet)
    await split.decode(STABLE)
    await split.prefill(STABLE, prefill_seconds=0.4)
    assert (await split.ask())[0] == 200
    labels = {"namespace": "team", "service": "chat", "revision": STABLE}
    value = fleet.gateway.metrics.registry.get_sample_value
    await until(lambda: value("pagefleet_gateway_ttft_seconds_count", labels) == 1)
    assert (value("pagefleet_gateway_ttft_seconds_sum", labels) or 0.0) >= 0.4


async def test_a_revision_without_ready_prefill_pods_serves(fleet: Fleet) -> None:
    split = Split(fleet)
    decode, prefill = await split.decode(STABLE), await split.prefill(STABLE, ready=False)
    status, by, headers = await split.ask()
    assert (status, by) == (200, decode.id) and PREFILLED_HEADER not in headers and not prefill.bodies


async def test_a_prefill_pod_that_is_gone_fails_no_request_and_is_asked_no_more(fleet: Fleet) -> None:
    split = Split(fleet)
    decode, prefill = await split.decode(STABLE), await split.prefill(STABLE)
    await prefill.die()
    status, by, headers = await split.ask()
    assert (status, by, headers[PREFILLED_HEADER]) == (200, decode.id, "unreached")
    await until(lambda: counted(fleet, "unreached") == 1)
    _, by, headers = await split.ask("other " * 400)
    assert by == decode.id and PREFILLED_HEADER not in headers  # the gateway has ejected it
    other = await split.prefill(STABLE)
    assert (await split.ask("third " * 400))[1] == other.id


async def test_a_sidecar_leaves_a_pod_alone_that_it_did_not_reach(fleet: Fleet) -> None:
    split = Split(fleet)
    decode, prefill = await split.decode(STABLE), await split.prefill(STABLE)
    split.proxies[0].avoided[f"{prefill.host}:{prefill.port}"] = time.monotonic() + 1e6
    _, by, headers = await split.ask()
    assert (by, headers[PREFILLED_HEADER]) == (decode.id, "avoided") and not prefill.bodies


async def test_a_prefill_pod_that_takes_too_long_is_given_up(fleet: Fleet) -> None:
    split = Split(fleet, timeout=0.3)
    decode, prefill = await split.decode(STABLE), await split.prefill(STABLE, gate=asyncio.Event())
    status, by, headers = await split.ask()
    assert (status, by, headers[PREFILLED_HEADER]) == (200, decode.id, "timeout")
    await until(lambda: prefill.left == 1)  # its leg is ended there too


@pytest.mark.parametrize(("code", "outcome"), [(503, "failed"), (429, "failed"), (500, "failed"), (400, "refused")])
async def test_a_prefill_pod_that_refuses_fails_no_request(fleet: Fleet, code: int, outcome: str) -> None:
    split = Split(fleet)
    decode, _ = await split.decode(STABLE), await split.prefill(STABLE, status=code)
    status, by, headers = await split.ask()
    assert (status, by, headers[PREFILLED_HEADER]) == (200, decode.id, outcome)


async def test_pages_that_are_lost_between_the_legs_are_computed_again(fleet: Fleet) -> None:
    split = Split(fleet)
    decode, prefill = await split.decode(STABLE), await split.prefill(STABLE)
    prefill.keep = lambda prompt: {"do_remote_prefill": True, "remote_engine_id": "gone", "remote_request_id": "x"}  # type: ignore[method-assign]
    assert (await split.ask())[:2] == (200, decode.id)


async def test_several_answers_are_computed_by_the_decode_pod(fleet: Fleet) -> None:
    split = Split(fleet)
    decode, prefill = await split.decode(STABLE), await split.prefill(STABLE)
    _, by, headers = await split.ask(n=2)
    assert (by, headers[PREFILLED_HEADER]) == (decode.id, "local") and not prefill.bodies


async def test_a_client_names_no_prefill_pod(fleet: Fleet) -> None:
    split = Split(fleet)
    decode = await split.decode(STABLE)
    mine = await split.prefill(STABLE, ready=False)
    body = json.dumps({"model": "smol", "messages": [{"role": "user", "content": LONG}]}).encode()
    status, answer, headers = await split.raw(body, {PREFILL_HEADER: f"{STABLE}@{mine.host}:{mine.port}"})
    assert status == 200 and decode.id in answer.decode() and PREFILLED_HEADER not in headers and not mine.bodies


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
@pytest.mark.parametrize("name", [PARAMS, "\\u006bv_transfer_params"])
async def test_a_client_does_not_say_where_pages_come_from(fleet: Fleet, name: str, encoding: str) -> None:
    split = Split(fleet)
    decode = await split.decode(STABLE)
    params = '{"do_remote_prefill": true, "remote_engine_id": "mine", "remote_host": "10.0.0.9"}'
    text = f'{{"model": "smol", "messages": [{{"role": "user", "content": "hello"}}], "{name}": {params}}}'
    status, _, _ = await split.raw(text.encode(encoding))
    assert [PARAMS in body for body in decode.bodies] in ([False], [])
    assert status == 200 or (status >= 400 and not decode.bodies)


async def test_both_legs_of_a_canary_are_of_one_revision(fleet: Fleet) -> None:
    split = Split(fleet)
    fleet.serve((STABLE, 50), (CANARY, 50), canary=CANARY)
    for revision in (STABLE, CANARY):
        await split.decode(revision)
        await split.prefill(revision)
    seen = set()
    for number in range(24):
        status, by, headers = await split.ask(f"{number} " + LONG)
        revision = headers["x-pagefleet-revision"]
        assert (status, headers[PREFILLED_HEADER]) == (200, "remote") and by.startswith(f"{revision}/")
        seen.add(revision)
    assert seen == {STABLE, CANARY}


async def test_a_retry_at_another_revision_has_that_ones_prefill_pod(fleet: Fleet) -> None:
    """The canary's only decode pod answers 503, and the stable one's pod is the next choice."""
    split = Split(fleet)
    fleet.serve((STABLE, 100), canary=CANARY, canary_headers=(("x-try", "canary"),))
    stable, canary = await split.decode(STABLE), await split.decode(CANARY, status=503)
    prefill, other = await split.prefill(STABLE), await split.prefill(CANARY)
    body = json.dumps({"model": "smol", "messages": [{"role": "user", "content": LONG}]}).encode()
    status, answer, headers = await split.raw(body, {"x-try": "canary"})
    assert (status, headers["x-pagefleet-revision"], headers[PREFILLED_HEADER]) == (200, STABLE, "remote")
    assert prefill.id in answer.decode() and stable.fetched and len(canary.bodies) == 1
    assert len(other.bodies) == 1  # the first attempt's leg was the canary's own


async def test_a_mirrored_copy_has_its_own_revisions_prefill_pod(fleet: Fleet) -> None:
    split = Split(fleet)
    fleet.serve((STABLE, 100), mirror=(CANARY, 100.0))
    await split.decode(STABLE)
    copy = await split.decode(CANARY)
    first, other = await split.prefill(STABLE), await split.prefill(CANARY)
    assert (await split.ask())[1] == first.id
    await until(lambda: len(copy.fetched) == 1)
    assert len(other.bodies) == len(first.bodies) == 1 and copy.computed == []


async def test_an_engine_that_is_gone_is_seen_through_its_sidecar(fleet: Fleet) -> None:
    """The gateway ejects the decode pod, as it would without a sidecar."""
    split, ejected = Split(fleet), fleet.gateway.ledger.outliers.count
    gone = await split.decode(STABLE)
    await gone.die()
    assert (await split.ask("hello"))[0] == 503
    await until(lambda: ejected(time.monotonic()) == 1)
    other = await split.decode(STABLE)
    assert (await split.ask("hello"))[:2] == (200, other.id)


async def test_a_stream_that_an_engine_ends_is_cut_for_the_client(fleet: Fleet) -> None:
    split = Split(fleet)
    await split.decode(STABLE, dies_after=2)
    with pytest.raises(aiohttp.ClientPayloadError):
        await split.ask("hello")
    await until(lambda: bool(fleet.lines) and fleet.lines[-1]["end"] == "failed")


async def test_a_client_that_leaves_ends_both_legs(fleet: Fleet) -> None:
    split = Split(fleet)
    decode, prefill = await split.decode(STABLE), await split.prefill(STABLE, gate=asyncio.Event())
    asking = asyncio.create_task(split.ask())
    await until(lambda: len(prefill.bodies) == 1)
    asking.cancel()
    await until(lambda: prefill.left == 1)
    assert decode.bodies == []


async def test_the_pods_page_has_the_engines_metrics_and_the_sidecars(fleet: Fleet) -> None:
    split = Split(fleet)
    await split.decode(STABLE)
    await split.prefill(STABLE)
    await split.ask()
    (pod,) = fleet.serving()
    async with fleet.http.get(f"http://{pod.address}/metrics") as response:
        page = await response.text()
    assert (
        "vllm:num_requests_running 0.0\n" in page and 'pagefleet_sidecar_prefills_total{outcome="remote"} 1.0' in page
    )
