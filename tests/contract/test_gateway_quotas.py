"""Two real gateways (Envoy and picker) share quotas over their internal ports.

Protects that the requests and the real tokens that both allow together are one quota's worth, wherever the client sends
them; that a gateway whose peer is killed goes on with the whole quota; and that only gateway pods may ask for a part.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import yaml
from support.gateway.fleet import STABLE, USAGE, Fleet, running, until

KEY = "sk-team-0123456789"
BODY = {"model": "smol", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 30}
TOKENS_OF_A_REQUEST = USAGE["total_tokens"]  # as the engine reports them


@dataclass
class Pair:
    fleets: list[Fleet]

    def meet(self) -> None:
        for one, other in (self.fleets, self.fleets[::-1]):
            one.gateway.members.put(other.gateway.settings.pod_name, f"127.0.0.1:{other.gateway.internal_port}")

    async def allowed(self, senders: Sequence[Fleet], seconds: float) -> tuple[int, float]:
        """Send without a pause from 4 clients each. Return the requests that were answered, and the seconds it took."""
        began, count = time.monotonic(), 0

        async def client(fleet: Fleet) -> None:
            nonlocal count
            while time.monotonic() < began + seconds:
                status, _, _ = await fleet.chat(json=BODY, headers={"authorization": f"Bearer {KEY}"})
                assert status in (200, 429), status
                count += status == 200
                # A client that is refused does not ask again at once.
                await asyncio.sleep(0.002 if status == 200 else 0.05)

        await asyncio.gather(*(client(fleet) for fleet in senders for _ in range(4)))
        return count, time.monotonic() - began


@asynccontextmanager
async def pair(folder: Path, **limits: int) -> AsyncIterator[Pair]:
    file = folder / "keys.yaml"
    file.write_text(yaml.safe_dump([{"name": "team", "key": KEY, **limits}]))
    async with (
        running(api_keys_file=file, pod_name="one") as one,
        running(api_keys_file=file, pod_name="two") as two,
    ):
        engine = await one.engine(STABLE, token_report="trailer")
        two.state.put_pod(engine.pod())
        for fleet in (one, two):
            fleet.serve((STABLE, 100))
        await until(lambda: engine.pod() in two.serving())
        both = Pair([one, two])
        both.meet()
        yield both


@pytest.mark.parametrize("senders", [2, 1])
async def test_the_requests_of_two_gateways_are_one_quota(tmp_path: Path, senders: int) -> None:
    quota = 300
    async with pair(tmp_path, requestsPerMinute=quota) as both:
        count, seconds = await both.allowed(both.fleets[:senders], 6.0)
        expected = quota + quota * seconds / 60
        assert 0.9 * expected <= count <= 1.1 * expected


async def test_the_real_tokens_of_two_gateways_are_one_quota(tmp_path: Path) -> None:
    quota = 1800
    async with pair(tmp_path, tokensPerMinute=quota) as both:
        count, seconds = await both.allowed(both.fleets, 6.0)
        expected = quota + quota * seconds / 60
        assert 0.9 * expected <= count * TOKENS_OF_A_REQUEST <= 1.1 * expected


@pytest.mark.parametrize("report", ["usage", "trailer"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_is_settled_with_the_engines_own_numbers(tmp_path: Path, report: str, stream: bool) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump([{"name": "team", "key": KEY, "tokensPerMinute": 100_000}]))
    async with running(api_keys_file=file) as fleet:
        await fleet.engine(STABLE, token_report=report)
        fleet.serve((STABLE, 100))
        body = {**BODY, "max_tokens": 50_000, "stream": stream, "stream_options": {"include_usage": True}}
        url, headers = f"{fleet.url}/team/chat/v1/chat/completions", {"authorization": f"Bearer {KEY}"}
        async with fleet.http.post(url, json=body, headers=headers) as response:
            assert response.status == 200
            await response.read()
        await until(lambda: len(fleet.lines) == 1)
        (bucket,) = fleet.gateway.picker.limits.buckets.keys.values()
        assert round(100_000 - bucket.level) == USAGE["total_tokens"]


async def test_a_gateway_whose_peer_is_gone_has_the_whole_rate_within_seconds(tmp_path: Path) -> None:
    quota = 600
    async with pair(tmp_path, requestsPerMinute=quota) as both:
        one, two = both.fleets
        await both.allowed(both.fleets, 3.0)
        await two.gateway.close()
        await both.allowed([one], 4.5)  # it notices
        count, seconds = await both.allowed([one], 4.0)
        assert 0.9 * quota * seconds / 60 <= count <= 1.1 * quota * seconds / 60 + 2


async def test_only_gateway_pods_may_ask_for_a_part(tmp_path: Path) -> None:
    async with pair(tmp_path, requestsPerMinute=10) as both:
        one, two = both.fleets
        url = f"http://127.0.0.1:{one.gateway.internal_port}/quotas"

        async def asked(document: object) -> tuple[int, object]:
            async with one.http.post(url, data=json.dumps(document)) as response:
                return response.status, await response.json()

        assert (await asked({"pod": "two", "buckets": []}))[0] == 200
        assert (await asked({"pod": "stranger", "buckets": []}))[0] == 403
        assert (await asked([]))[0] == 403
        one.gateway.members.put(
            "two", f"127.0.0.9:{two.gateway.internal_port}"
        )  # now this client's address is nobody's
        assert (await asked({"pod": "two", "buckets": []}))[0] == 403
        async with aiohttp.ClientSession() as http, http.get(url) as response:
            assert response.status == 405
