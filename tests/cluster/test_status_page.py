"""Protects the status page of the operator as it is shipped: it follows real objects within two seconds, has the pods that
the last decision saw, and costs the API server no request."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest
from support.cluster.plane import TOKEN, Plane
from support.cluster.services import NAMESPACE, audited, ready

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
LAG_SECONDS = 10.0  # less than any interval at which the operator looks by itself; a busy machine takes some of it


async def event(answer: aiohttp.ClientResponse) -> Any:
    """Return the data of the next event of a stream."""
    async with asyncio.timeout(30):
        while True:
            line = (await answer.content.readline()).decode()
            if line.startswith("data: "):
                return json.loads(line.removeprefix("data: "))


async def test_the_page_follows_a_real_service(plane: Plane) -> None:
    state = await ready(plane, "watched")
    url = f"{plane.operator_url}/ui"
    async with aiohttp.ClientSession(headers=HEADERS) as http:
        async with http.get(f"{url}/api/services/{NAMESPACE}/watched") as answer:
            page = await answer.json()
        assert page["headline"] == f"Revision {state.stable} serves all traffic."
        assert [pod["revision"] for pod in page["pods"]] == [state.stable]
        assert page["replicas"][-1]["ready"] == {state.stable: 1}
        async with http.get(f"{url}/events") as stream:
            assert "watched" in {row["name"] for row in (await event(stream))["rows"]}
            before = len(audited(plane, ("get", "list")))
            for _ in range(20):
                async with http.get(f"{url}/api/services/{NAMESPACE}/watched") as answer:
                    assert answer.status == 200
            asked = [entry for entry in audited(plane, ("get", "list"))[before:] if "watched" in entry["requestURI"]]
            assert asked == []
            await plane.kubectl.run("delete", "isvc", "watched", "-n", NAMESPACE, "--wait=false")
            began = time.monotonic()
            while f"{NAMESPACE}/watched" not in (await event(stream)).get("gone", ()):
                pass
            assert time.monotonic() - began < LAG_SECONDS
