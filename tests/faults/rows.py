"""The rows of the reliability table: what is tried, when it passes, and what proves it. Says nothing of results.

A proof is a name under which a program keeps what it has measured (`faults.report.kept`), or pytest arguments that
`faults.proofs` runs, or the stories of the campaign with that row's number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tests:
    """What pytest is given; `more` enlarges it for the campaign."""

    paths: tuple[str, ...]
    more: Mapping[str, str] = field(default_factory=dict)
    control_plane: bool = False


@dataclass(frozen=True)
class Row:
    number: int
    what: str
    passes: str
    stories: bool = False
    tests: Tests | None = None
    programs: tuple[str, ...] = ()  # names of kept results
    lacks: str = ""  # which part of the row nothing here proves


def tests(*paths: str, control_plane: bool = False, **more: str) -> Tests:
    return Tests(tuple(f"tests/{path}" for path in paths), more, control_plane)


PROGRAMS = {
    "idle": "python -m faults.idle",
    "outages": "python -m faults.campaign --row 8",
    "scale": "make scale",
    "poisoned": "python -m scale.main --services 100 --poisoned 1",
    "soak": "make soak",
    "upgrade": "make upgrade",
    "mutations": "make mutations",
    "flood": "make flood",
}
ROWS = (
    Row(1, "10 minutes idle after convergence", "0 writes (Lease excepted)", programs=("idle",),
        tests=tests("property/test_operator_rollout.py::test_who_waits_for_a_person_writes_nothing")),
    Row(2, "killed at every write, before and after its commit", "same end state and counts, <= 30 s", stories=True),
    Row(3, "killed twice, by seed", "same end state and counts", stories=True),
    Row(4, "killed, then old lists", "0 wrong deletes", stories=True, tests=tests("property/test_operator_store.py")),
    Row(5, "events that cancel each other never arrive", "same end state", stories=True),
    Row(6, "watches cut, truncated, 410, other ERROR, silent", "next edit within 5 s (silent: guard + 5 s)", stories=True),
    Row(7, "writes answered 409, 422, 429, 5xx, 403, or lost after the commit; edits by a user at such moments",
        "same end state and counts; 0 lost user fields", stories=True),
    Row(8, "API server, etcd killed for 15 and 60 s at 20 points", "converged <= 30 s after; 0 failed requests",
        stories=True),
    Row(9, "every CRD leaf x >= 20 mutations; a sample of them on live objects, and put back",
        "a Spec, or refused by name; decided <= 20 s; put back restores; 0 tracebacks",
        tests=tests("property/test_operator_stored.py::test_there_are_twenty_mutations_and_every_field_is_reached",
                    "property/test_operator_stored.py::test_every_mutation_of_every_field_is_a_spec_or_is_refused_by_name"),
        programs=("mutations",)),
    Row(10, "10,000 stored objects past validation; one poisoned among 100", "only Spec or SpecErrors; neighbours +10 %",
        tests=tests("property/test_operator_stored.py", PAGEFLEET_STORED_OBJECTS="10000"), programs=("poisoned",)),
    Row(11, "1,000 InferenceServices", "Ready <= 270 s; <= 400 MiB; restart <= 30 s, 0 writes; edit p99 <= 3 s",
        programs=("scale",)),
    Row(12, "two replicas: killed, frozen for two leases", "takeover <= lease + 5 s; 0 conflicting writes",
        tests=tests("faults/test_leadership.py", "property/test_operator_lease.py", control_plane=True)),
    Row(13, "clock jumps in each state", "0 early steps",
        tests=tests("property/test_operator_rollout.py::test_no_step_ends_early_however_the_clock_jumps")),
    Row(14, "deleted in every way, operator dead", "gone <= 30 s; 0 left",
        tests=tests("cluster/test_deletion.py", control_plane=True)),
    Row(15, "conditions over all histories", "0 violations", tests=tests("cluster/test_rollouts.py", control_plane=True)),
    Row(16, "rollout automaton's invariants", "0 violations in random histories and every recording; rollback <= 5 s",
        tests=tests("property/test_operator_rollout.py::test_every_history_keeps_the_invariants")),
    Row(17, "guard: A/A, slower, one outlier", "false <= 1 %; detection >= 99 %; an outlier never decides",
        tests=tests("property/test_operator_guard.py", "property/test_operator_paired.py",
                    "property/test_operator_edged.py")),
    Row(18, "metrics: NaN, empty, reset, 5xx, hang, huge", "0 promotions; held; rollback at the deadline",
        tests=tests("unit/test_operator_signals.py", "unit/test_operator_prometheus_windows.py",
                    "property/test_operator_rollout.py::test_without_measurements_nothing_is_promoted_and_the_deadline_decides")),
    Row(19, "forged alerts", "0 state changes; 4xx", tests=tests("unit/test_operator_alerts.py")),
    Row(20, "alert flood, 1,000/s for 60 s with kills", "1 rollback per revision; stored before 200; <= 5 writes; <= +50 MiB",
        tests=tests("unit/test_operator_alerts.py::test_a_storm_is_few_writes",
                    "unit/test_operator_alerts.py::test_it_is_stored_before_the_answer_and_once",
                    "property/test_operator_rollout.py::test_an_alert_rolls_back_once_at_any_moment"),
        programs=("flood",)),
    Row(21, "autoscaler: noise, step, spikes, missing metrics", "within bounds; 0 flaps; never down on missing data",
        tests=tests("property/test_operator_autoscale.py", PAGEFLEET_AUTOSCALE_TRACES="1000")),
    Row(22, "engine killed mid-stream, drained, hung", "0 silent truncations; retries only before the first token",
        tests=tests("contract/test_gateway_engine_deaths.py", "engine/test_engine_api_life.py",
                    "contract/test_gateway_answers.py", PAGEFLEET_ENGINE_KILLS="200", PAGEFLEET_ENGINE_DRAINS="200")),
    Row(23, "KV allocator and scheduler as state machines", "0 violations in 10^6 steps",
        tests=tests("property/test_engine_core_scheduler.py", PAGEFLEET_MACHINE_STEPS="1000000")),
    Row(24, "pool at 100 %, preemption, prefix cache", "token-exact against solo runs",
        tests=tests("engine/test_engine_full_pool.py", "engine/test_engine_parity_tiny.py",
                    "property/test_engine_core_overlap.py", PAGEFLEET_PARITY_REQUESTS="2000")),
    Row(25, "schemathesis, CVE shapes, slow clients, floods", "0 5xx, 0 crashes; others served meanwhile",
        tests=tests("engine/test_engine_openapi.py", "engine/test_engine_api_hostile.py", "contract/test_gateway_hostile.py",
                    PAGEFLEET_API_CASES="50000")),
    Row(26, "no code from data, declared ports only, no egress", "0 hits",
        tests=tests("unit/test_security_code.py", "unit/test_security_manifests.py")),
    Row(27, "Pod Security restricted on every manifest", "0 violations", tests=tests("unit/test_security_manifests.py")),
    Row(28, "whole suite under the shipped Role", "0 unexpected 403; 0 unused verbs",
        tests=Tests(("tests/cluster", "--ignore=tests/cluster/test_e2e_fleet.py"), control_plane=True)),
    Row(29, "confused deputy", "100 % rejected", tests=tests("unit/test_security_manifests.py")),
    Row(30, "hash-pinned locks, SBOM", "0 unpinned", tests=tests("unit/test_supply_chain.py")),
    Row(31, "memory under load, 30 minutes: operator, gateway, engine", "flat; slope stated", programs=("soak",)),
    Row(32, "operator upgraded and downgraded; a second CRD version", "Ready throughout, weights stay",
        tests=tests("faults/test_versions.py", control_plane=True), programs=("upgrade",)),
)  # fmt: skip
