"""Protects least privilege: after the whole suite nothing that the operator asked for was forbidden, and nothing stands
in its Role that no test needed. The last file by name, because it reads the audit log of all others; what only faults
bring about is listed with the test that does it. Row 28 of the reliability table."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cluster.plane import OPERATOR_USER, Plane
from support.rbac import Grant, asked, events, granted

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
HERE = Path(__file__).parent
ROLE = granted("base/operator-rbac.yaml")
FAULTS, LEADERSHIP = "../faults/test_faults.py", "../faults/test_leadership.py"
# What this folder's tests do not bring about for certain.
ELSEWHERE: dict[Grant, str] = {
    # Read again after a conflict, or when it is gone.
    ("apps", "deployments", "get"): FAULTS,
    ("", "services", "get"): FAULTS,
    ("policy", "poddisruptionbudgets", "get"): FAULTS,
    ("pagefleet.io", "inferenceservices", "get"): FAULTS,
    ("leaderworkerset.x-k8s.io", "leaderworkersets", "get"): FAULTS,  # on the way of the others
    ("coordination.k8s.io", "leases", "get"): LEADERSHIP,
    ("coordination.k8s.io", "leases", "create"): LEADERSHIP,
    ("coordination.k8s.io", "leases", "update"): LEADERSHIP,
}


async def test_nothing_was_forbidden(plane: Plane) -> None:
    found = asked(events(plane.layout.logs), OPERATOR_USER, ROLE)
    assert found.requests > 20
    assert sorted(found.forbidden) == []


async def test_nothing_is_asked_for_that_the_role_does_not_name(plane: Plane) -> None:
    """Also what another binding would have allowed."""
    found = asked(events(plane.layout.logs), OPERATOR_USER, ROLE)
    assert sorted(found.used - ROLE) == []


async def test_nothing_is_granted_that_nobody_needs(plane: Plane, request: pytest.FixtureRequest) -> None:
    ran = {item.path.name for item in request.session.items}
    here = {path.name for path in HERE.glob("test_*.py")} - {"test_e2e_fleet.py"}  # it has a control plane of its own
    missing = sorted(here - ran)
    if missing:
        pytest.skip(f"only the whole suite uses the whole Role; not in this run: {', '.join(missing)}")
    found = asked(events(plane.layout.logs), OPERATOR_USER, ROLE)
    assert sorted(ROLE - found.used - set(ELSEWHERE)) == []


async def test_the_exceptions_are_granted_and_are_tested() -> None:
    assert set(ELSEWHERE) <= ROLE
    assert all((HERE / file).is_file() for file in ELSEWHERE.values())
