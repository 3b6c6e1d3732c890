"""The cases of the inference extension's conformance suite about which pool a request goes to, with a real Envoy that is the cases'
Gateways and a picker for each pool. Each case has the name that it has in the suite. The conditions that the suite reads besides are
written by a gateway's own controller: docs/gateway-api.md names them.

Protects that a picker answers for its pool whichever Gateway, rule, weight, path, host name or method led to it, that no request
leaves the pool that the gateway chose, and that a pool's appProtocol is the endpoints' alone.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from pathlib import Path

import pytest
from support.gateway.conforming import Rule, gateways, h2c_pool, pools, to

PRIMARY, SECONDARY = "primary.example.com", "secondary.example.com"


async def test_gateway_weighted_across_two_inference_pools(tmp_path: Path) -> None:
    path, requests, share = "/weighted-two-pools-test", 200, 0.7
    async with pools(tmp_path, "primary", "secondary") as (primary, secondary):
        rule = Rule(path, ((primary, 70), (secondary, 30)), PRIMARY)
        async with gateways(tmp_path, primary=[rule]) as front:
            everywhere = primary.endpoints + secondary.endpoints  # each picker keeps to those of its own pool
            answers = []
            for _ in range(requests // 5):
                answers += await asyncio.gather(*(front.ask(path, everywhere, host=PRIMARY) for _ in range(5)))
        assert {answer.status for answer in answers} == {200}
        hits = Counter(answer.pod in primary.pods for answer in answers)
        assert hits[True] == len(primary.seen) and hits[False] == len(secondary.seen)
        tolerance = max(0.10, 4.5 * math.sqrt(share * (1 - share) / requests))  # as in the suite
        assert abs(hits[True] / requests - share) <= tolerance


async def test_httproute_multiple_gateways_different_pools(tmp_path: Path) -> None:
    paths = {"primary": ("/test-primary-gateway", PRIMARY), "secondary": ("/test-secondary-gateway", SECONDARY)}
    async with pools(tmp_path, "primary", "secondary", pods=2) as both:
        rules = {pool.name: [to(paths[pool.name][0], pool, paths[pool.name][1])] for pool in both}
        async with gateways(tmp_path, **rules) as front:
            for pool in both:
                path, host = paths[pool.name]
                answer = await front.ask(path, gateway=pool.name, host=host, method="GET")
                assert answer.status == 200 and answer.pod in pool.pods
                assert (await front.ask(path, gateway=pool.name, host="other.example.com")).status == 404


async def test_inference_pool_multiple_rules_different_pools(tmp_path: Path) -> None:
    async with pools(tmp_path, "primary", "secondary", pods=2) as (primary, secondary):
        rules = [to("/primary", primary), to("/secondary", secondary)]
        async with gateways(tmp_path, primary=rules) as front:
            for method in ("GET", "POST"):
                assert (await front.ask("/primary", method=method)).pod in primary.pods
                assert (await front.ask("/secondary", method=method)).pod in secondary.pods


async def test_inference_pool_resolved_refs_condition(tmp_path: Path) -> None:
    """One pool behind two Gateways, until the one's route is deleted, and then the other's."""
    paths = {"primary": ("/primary-gateway-test", PRIMARY), "secondary": ("/secondary-gateway-test", SECONDARY)}
    async with pools(tmp_path, "primary", pods=2) as (pool,):
        for routes in (("primary", "secondary"), ("secondary",), ()):
            rules = {name: [to(path, pool, host)] if name in routes else [] for name, (path, host) in paths.items()}
            async with gateways(tmp_path, unused=[to("/unused", pool)], **rules) as front:
                for name, (path, host) in paths.items():
                    answer = await front.ask(path, gateway=name, host=host, method="GET")
                    assert (answer.status, answer.pod in pool.pods) == ((200, True) if name in routes else (404, False))


async def test_inference_pool_httproute_port_validation(tmp_path: Path) -> None:
    """A port in a route's reference to a pool means nothing: requests of the three routes all reach the pool's target port."""
    cases = ("port-unspecified", "port-matching", "port-non-matching")
    async with pools(tmp_path, "primary", pods=2) as (pool,):
        rules = [to(f"/test-{case}", pool, f"{case}.example.com") for case in cases]
        async with gateways(tmp_path, primary=rules) as front:
            for case in cases:
                answer = await front.ask(f"/test-{case}", host=f"{case}.example.com", method="GET")
                assert (answer.status, answer.port, answer.path) == (200, pool.ports[0], f"/test-{case}")


@pytest.mark.parametrize("protocol", ["kubernetes.io/h2c", "http", ""])
async def test_inference_pool_app_protocol(tmp_path: Path, protocol: str) -> None:
    if protocol == "kubernetes.io/h2c":
        async with h2c_pool(tmp_path, "h2c") as pool, gateways(tmp_path, primary=[to("/h2c", pool)]) as front:
            for endpoint in pool.endpoints:
                assert (await front.ask("/h2c", [endpoint])).pod in pool.pods
        return
    async with pools(tmp_path, "primary", pods=2) as (pool,):
        pool.app_protocol = protocol
        await pool.known()
        async with gateways(tmp_path, primary=[to("/http", pool)]) as front:
            for name, host in pool.pods.items():
                assert (await front.ask("/http", [f"{host}:{pool.ports[0]}"])).pod == name
