"""A pod whose node vanishes: its packets are dropped, and no reset says so. Real Envoy, and the pod in a network of its own.

Protects that requests are answered by another pod within the time that the gateway needs to find out, that streams which have
begun end for their clients, and that the pod is ejected. With `traffic.firstTokenTimeout` that is sooner.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support import namespaces
from support.gateway import black_hole
from support.gateway.black_hole import MANY, Answer

from pagefleet_gateway.envoy.timeouts import ENGINE_CONNECT_SECONDS, UNACKNOWLEDGED_SECONDS

SLACK_SECONDS = 3.0  # all scenes are played at once
# Each scene with the service's firstTokenTimeout, and the seconds after which the gateway gives the pod up.
SCENES = {
    ("new", None): ENGINE_CONNECT_SECONDS,
    ("idle", None): UNACKNOWLEDGED_SECONDS,
    ("busy", None): UNACKNOWLEDGED_SECONDS,
    ("streaming", None): UNACKNOWLEDGED_SECONDS,
    ("idle", 0.5): UNACKNOWLEDGED_SECONDS,  # half of its requests are no streams
    ("busy", 0.5): 0.5,
}
pytestmark = namespaces.needed("that a pod whose packets are dropped is given up")


@pytest.fixture(scope="module")
def played() -> dict[tuple[str, float | None], dict[str, list[Answer]]]:
    with ThreadPoolExecutor(len(SCENES)) as pool:
        return dict(zip(SCENES, pool.map(lambda scene: black_hole.in_own_network(*scene), SCENES), strict=True))


@pytest.mark.parametrize("scene", SCENES)
def test_a_pod_whose_packets_are_dropped_is_given_up(
    scene: tuple[str, float | None], played: dict[tuple[str, float | None], dict[str, list[Answer]]]
) -> None:
    meanwhile, afterwards, limit = played[scene]["meanwhile"], played[scene]["afterwards"], SCENES[scene]
    assert len(meanwhile) == len(afterwards) == MANY
    assert {one.status for one in meanwhile} == {200}
    slowest = max(one.seconds for one in meanwhile)
    assert min(limit, 0.4) < slowest < limit + SLACK_SECONDS, "some of them were at the pod that vanished"
    cut = [one for one in meanwhile if not one.whole]
    assert bool(cut) == (scene[0] == "streaming"), "only an answer that has begun can be cut"
    assert all(one.told for one in cut), "and its client is told"
    assert [(one.status, one.whole) for one in afterwards] == [(200, True)] * MANY
    assert max(one.seconds for one in afterwards) < ENGINE_CONNECT_SECONDS, "the pod is ejected"
