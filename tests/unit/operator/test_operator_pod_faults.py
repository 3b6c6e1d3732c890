"""Protects what is said of a pod that cannot run for a container beside the engine, such as one that an admission webhook has added: the
container is named, and the engine is not blamed for it."""

from __future__ import annotations

from typing import Any

import pytest

from pagefleet_operator.domain.status.observation import PodFault
from pagefleet_operator.kube import readings

INITIALISING = {"name": "engine", "state": {"waiting": {"reason": "PodInitializing"}}}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
EXITED = {"terminated": {"exitCode": 1, "reason": "Error", "message": "iptables: permission denied"}}


def status(others: str, *containers: dict[str, Any], engine: dict[str, Any] = INITIALISING) -> dict[str, Any]:
    listed = {"initContainerStatuses": list(containers), "containerStatuses": [engine]}
    return listed if others == "init" else {"containerStatuses": [*containers, engine]}


@pytest.mark.parametrize("others", ["init", "beside"])
@pytest.mark.parametrize(
    ("state", "fault"),
    [
        (
            {"state": BACK_OFF, "lastState": EXITED},
            PodFault("ContainerExited", "container mesh: exit status 1: iptables: permission denied"),
        ),
        ({"state": EXITED}, PodFault("ContainerExited", "container mesh: exit status 1: iptables: permission denied")),
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
            PodFault("ImagePullBackOff", "container mesh: no such image"),
        ),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}}},
            PodFault("CreateContainerConfigError", "container mesh: no secret"),
        ),
        ({"state": {"running": {}}, "lastState": EXITED}, None),
        ({"state": {"terminated": {"exitCode": 0}}}, None),
        ({"state": {"waiting": {"reason": "PodInitializing"}}}, None),
    ],
)
def test_a_container_that_was_added_is_named(others: str, state: dict[str, Any], fault: PodFault | None) -> None:
    """A pod waited for an init container of a mesh, and nothing said why; one beside the engine was said to be the engine."""
    assert readings.fault(status(others, {"name": "mesh", **state})) == fault


def test_the_engine_s_own_fault_comes_first() -> None:
    engine = {"name": "engine", "state": {"terminated": {"exitCode": 2, "message": "bad flag"}}}
    found = readings.fault(status("beside", {"name": "agent", "state": EXITED}, engine=engine))
    assert found == PodFault("EngineExited", "exit status 2: bad flag")
