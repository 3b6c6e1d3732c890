"""Protects the invariants of the rollout automaton (rows 13, 15, 16 of docs/reliability.md) on every version of every
InferenceService that the API server stored during all tests of this folder. Marked `last`: it reads what they left."""

from __future__ import annotations

import pytest
from support.cluster.plane import Plane
from support.cluster.services import ready

pytestmark = [pytest.mark.cluster, pytest.mark.last, pytest.mark.asyncio(loop_scope="session")]


async def test_every_recording_keeps_the_invariants(plane: Plane) -> None:
    await ready(plane, "recorded")
    assert len(plane.recording.versions["default", "recorded"]) >= 2, "nothing was recorded"
    assert plane.recording.violations() == []
