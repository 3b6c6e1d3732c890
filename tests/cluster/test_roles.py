"""Protects least privilege: after the whole suite no request of the operator was forbidden, and its Role grants nothing
that no test needed (row 28 of docs/reliability.md). Marked `last`: it reads the audit log of all tests of this folder. A
verb that only faults need is listed below with the test that needs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cluster.plane import OPERATOR_USER, Plane
from support.rbac import Grant, events, granted, role_use

pytestmark = [pytest.mark.cluster, pytest.mark.last, pytest.mark.asyncio(loop_scope="session")]
HERE = Path(__file__).parent
ROLE = granted("base/operator-rbac.yaml")
FAULTS, LEADERSHIP = "../faults/test_faults.py", "../faults/test_leadership.py"
# Verbs that the tests of this folder do not always need, and the test that does.
ELSEWHERE: dict[Grant, str] = {
    # A read after a conflict, or after the object is gone.
    ("apps", "deployments", "get"): FAULTS,
    ("", "services", "get"): FAULTS,
    ("policy", "poddisruptionbudgets", "get"): FAULTS,
    ("pagefleet.io", "inferenceservices", "get"): FAULTS,
    ("leaderworkerset.x-k8s.io", "leaderworkersets", "get"): FAULTS,  # as the others
    ("coordination.k8s.io", "leases", "get"): LEADERSHIP,
    ("coordination.k8s.io", "leases", "create"): LEADERSHIP,
    ("coordination.k8s.io", "leases", "update"): LEADERSHIP,
}


async def test_nothing_was_forbidden(plane: Plane) -> None:
    record = role_use(events(plane.layout.logs), OPERATOR_USER, ROLE)
    assert record.requests > 20
    assert sorted(record.forbidden) == []


async def test_nothing_is_asked_for_that_the_role_does_not_name(plane: Plane) -> None:
    """Requests that another binding would allow count as well."""
    record = role_use(events(plane.layout.logs), OPERATOR_USER, ROLE)
    assert sorted(record.used - ROLE) == []


async def test_nothing_is_granted_that_nobody_needs(plane: Plane, request: pytest.FixtureRequest) -> None:
    ran = {item.path.name for item in request.session.items}
    here = {path.name for path in HERE.glob("test_*.py") if not path.name.startswith("test_e2e_")}  # on another plane
    missing = sorted(here - ran)
    if missing:
        pytest.skip(f"only the whole suite uses the whole Role; not in this run: {', '.join(missing)}")
    record = role_use(events(plane.layout.logs), OPERATOR_USER, ROLE)
    assert sorted(ROLE - record.used - set(ELSEWHERE)) == []


async def test_the_exceptions_are_granted_and_are_tested() -> None:
    assert set(ELSEWHERE) <= ROLE
    assert all((HERE / file).is_file() for file in ELSEWHERE.values())
