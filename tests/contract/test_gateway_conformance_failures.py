"""The cases of the inference extension's conformance suite about pickers that are not there, with a real Envoy as the Gateway. Each
case has the name that it has in the suite; `FailClose` is the other value of `failureMode`, which the suite leaves out.

Protects that a picker which ends leaves nothing behind that hinders a gateway: with FailOpen requests reach any endpoint of the pool,
with FailClose and without a picker none; and that a picker which drains still answers what it was asked.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.gateway.conforming import gateways, pools, to

PATH, HOST = "/failopen-pool-test", "secondary.example.com"


@pytest.mark.parametrize("case", ["EppUnAvailableFailOpen", "FailClose"])
@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "BUFFERED"])
@pytest.mark.parametrize("service", ["no endpoint", "an endpoint that is gone"])
async def test_a_picker_that_ends(tmp_path: Path, case: str, mode: str, service: str) -> None:
    async with pools(tmp_path, "secondary") as (pool,):
        assert pool.picker is not None
        pool.fails_open = case == "EppUnAvailableFailOpen"
        name, host = next(iter(pool.pods.items()))
        picked, rules = [f"{host}:{pool.ports[0]}"], [to(PATH, pool, HOST)]
        async with gateways(tmp_path, primary=rules, requests=mode) as front:
            for _ in range(3):
                assert (await front.ask(PATH, picked, host=HOST)).pod == name
            await pool.picker.gateway.close()
            answers = [await front.ask(PATH, picked, host=HOST) for _ in range(20)]
        if service == "no endpoint":  # as soon as the gateway has heard of it; this is what the suite does
            pool.picker, pool.seen[3:] = None, []
            async with gateways(tmp_path, primary=rules, requests=mode) as front:
                answers = [await front.ask(PATH, picked, host=HOST) for _ in range(20)]
        statuses = {answer.status for answer in answers}
        # Envoy does not fail open once it has begun to stream a body to a picker. A GET has no body.
        if pool.fails_open and (mode == "BUFFERED" or service == "no endpoint"):
            assert statuses == {200} and {answer.pod for answer in answers} <= set(pool.pods)
            assert len({answer.pod for answer in answers}) > 1  # any endpoint: nobody picks
        else:
            assert min(statuses) >= 500 and len(pool.seen) == 3


async def test_inference_pool_invalid_epp_service(tmp_path: Path) -> None:
    async with pools(tmp_path, "invalid", pods=1, picker=False) as (pool,):
        async with gateways(tmp_path, primary=[to("/invalid-epp-test", pool)]) as front:
            assert (await front.ask("/invalid-epp-test", method="GET")).status in range(500, 505)
            assert (await front.ask("/invalid-epp-test")).status in range(500, 505)
        assert pool.seen == []
