"""Protects a service from a crash, a lying or failing API server, and a broken watch. Every case
must end in the state, and by the number of creations and deletions, of runs without faults (rows 2, 3, 4, 6, 7 of the
reliability table). A few cases of each row here, chosen by a seed, at writes that every story has; all of them in
`make campaign`."""

from __future__ import annotations

import os

import pytest
from faults.cases import cases, subset
from faults.runs import Ground, run_all

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
SEED = int(os.environ.get("PAGEFLEET_FAULT_SEED", "1"))
MAX_CASES = int(os.environ.get("PAGEFLEET_FAULT_CASES", "5"))

# A watch's ERROR once ended the operator, or its workers without a log line: kopf cancels every task of its loop.
# A user's edits at the moments at which writes fail are no part of the sample: their story may take longer.
ALWAYS = ("watch-500-pods-1", "edits-409-")


async def test_faults_change_nothing(ground: Ground) -> None:
    calm = await ground.calm()
    assert calm.truth.counts["CREATE deployments"] == 3
    assert calm.truth.counts["DELETE deployments"] == 2
    assert calm.certain <= calm.writes
    always = [case for case in cases(calm.certain) if case.name.startswith(ALWAYS)]
    stories = await run_all(ground, [*subset(calm.certain, SEED, MAX_CASES), *always], calm, at_once=2)
    assert {one.name: one.problems for one in stories if one.problems} == {}
    # A case that never struck would prove nothing.
    assert [one.name for one in stories if not one.struck] == []
