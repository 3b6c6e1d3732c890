"""The rows of the reliability table: the fault or load, the limit at which it passes, and its proof. Holds no results.

A proof is one of three: a name under which a program stores its measurement (`faults.report.store`), pytest arguments that
`faults.proofs` runs, or the stories of the campaign with that row's number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tests:
    """Arguments of pytest. `more` are environment variables that enlarge the tests for the campaign."""

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
    programs: tuple[str, ...] = ()  # names of stored results
    lacks: str = ""  # the part of the row that no proof here covers


def tests(*paths: str, control_plane: bool = False, **more: str) -> Tests:
    return Tests(tuple(f"tests/{path}" for path in paths), more, control_plane)


PROGRAMS = {
    "idle": "python -m faults.idle",
    "stories": "python -m faults.stories",
    "outages": "python -m faults.campaign --row 8",
    "scale": "make scale",
    "poisoned": "python -m scale.main --services 100 --poisoned 1",
    "soak": "make soak",
    "upgrade": "make upgrade",
    "mutations": "make mutations",
    "flood": "make flood",
}
ROWS = (
    Row(1, "10 idle minutes after the operator has converged; then busy engines, requests and a canary that is judged",
        "0 writes (renewals of the Lease excepted); busy, a minute: 1 for a service that serves, 12 for the one with the canary",
        programs=("idle",),
        tests=tests("property/test_operator_rollout.py::test_a_rollout_that_waits_for_a_person_writes_nothing")),
    Row(2, "the operator is killed at every write, before and after the write is committed",
        "same end state and counts as without faults; <= 30 s", stories=True, programs=("stories",)),
    Row(3, "the operator is killed twice, at writes that a seed chooses", "same end state and counts as without faults",
        stories=True),
    Row(4, "the operator is killed; after the restart the API server answers with old lists of children",
        "0 wrong deletes",
        stories=True, tests=tests("property/test_operator_store.py")),
    Row(5, "watch events that cancel each other never arrive", "same end state as without faults", stories=True),
    Row(6, "watches are cut off, truncated, answered 410 or another ERROR, or fall silent",
        "the next edit takes effect within 5 s (silent watch: kopf's client timeout + 5 s)", stories=True),
    Row(7, "writes are answered 409, 422, 429, 5xx or 403, or their answer is lost after the commit; "
        "a user edits at such moments",
        "same end state and counts as without faults; no field that a user set is lost", stories=True),
    Row(8, "the API server or etcd is killed for 15 and 60 s, at 20 points of a story",
        "converged <= 30 s after it is back; 0 failed requests",
        stories=True),
    Row(9, "every leaf field of the CRD gets >= 20 mutations; a sample of them is applied to live objects and reverted",
        "each gives a valid Spec or a refusal that names the field; decided <= 20 s; "
        "reverting restores the service; 0 tracebacks",
        tests=tests("property/test_operator_stored.py::test_there_are_twenty_mutations_and_every_field_is_reached",
                    "property/test_operator_stored.py::test_every_mutation_of_every_field_is_a_spec_or_is_refused_by_name"),
        programs=("mutations",)),
    Row(10, "10,000 stored objects that bypassed validation; one poisoned service among 100",
        "the result is always Spec or SpecErrors; the other services slow down by at most 10 %",
        tests=tests("property/test_operator_stored.py", PAGEFLEET_STORED_OBJECTS="10000"), programs=("poisoned",)),
    Row(11, "1,000 InferenceServices whose engines' load moves, requests through a gateway, and ten canaries that are judged",
        "all Ready <= 270 s; operator's memory <= 400 MiB; restart <= 30 s with 0 writes for services that serve; "
        "p99 from an edit to its decision <= 3 s; 0 failed requests",
        programs=("scale",)),
    Row(12, "two replicas of the operator: the leader is killed, or frozen for two leases",
        "takeover <= lease + 5 s; 0 conflicting writes",
        tests=tests("faults/test_leadership.py", "property/test_operator_lease.py", control_plane=True)),
    Row(13, "the clock jumps in each state of a rollout", "no step ends early",
        tests=tests("property/test_operator_rollout.py::test_no_step_ends_early_however_the_clock_jumps",
                    PAGEFLEET_ROLLOUT_TRACES="100000")),
    Row(14, "a service is deleted in every way while the operator is dead",
        "its objects are gone <= 30 s; 0 objects left",
        tests=tests("cluster/test_deletion.py", control_plane=True)),
    Row(15, "the conditions' invariants over all recorded histories", "0 violations",
        tests=tests("cluster/test_rollouts.py", control_plane=True)),
    Row(16, "the invariants of the rollout state machine",
        "0 violations in random histories and in every recording; rollback <= 5 s",
        tests=tests("property/test_operator_rollout.py::test_every_history_keeps_the_invariants",
                    PAGEFLEET_ROLLOUT_TRACES="100000")),
    Row(17, "the guard with equal revisions (A/A), a slower canary, one outlier",
        "false rollbacks <= 1 %; detection >= 99 %; an outlier never decides",
        tests=tests("property/test_operator_guard.py", "property/test_operator_paired.py",
                    "property/test_operator_edged.py", PAGEFLEET_GUARD_RUNS="1000")),
    Row(18, "metrics are NaN, empty, reset or huge, or their source answers 5xx or hangs",
        "0 promotions; the rollout holds; rollback at the deadline",
        tests=tests("unit/operator/test_operator_signals.py", "unit/operator/test_operator_prometheus_windows.py",
                    "property/test_operator_rollout.py::test_without_measurements_nothing_is_promoted_and_the_deadline_decides")),
    Row(19, "forged alerts", "0 changes of state; answered 4xx", tests=tests("unit/operator/test_operator_alerts.py")),
    Row(20, "a flood of alerts, 1,000/s for 60 s, while the operator is killed",
        "1 rollback per revision; each alert is stored before it is answered 200; <= 5 writes; "
        "memory grows by <= 50 MiB",
        tests=tests("unit/operator/test_operator_alerts.py::test_a_storm_is_few_writes",
                    "unit/operator/test_operator_alerts.py::test_it_is_stored_before_the_answer_and_once",
                    "property/test_operator_rollout.py::test_an_alert_rolls_back_once_at_any_moment"),
        programs=("flood",)),
    Row(21, "the autoscaler with noise, a step, spikes and missing metrics",
        "replicas within bounds; 0 flaps; no scale-down on missing data",
        tests=tests("property/test_operator_autoscale.py", PAGEFLEET_AUTOSCALE_TRACES="1000")),
    Row(22, "an engine is killed in the middle of streams, drained, or hangs",
        "0 silent truncations; retries only before the first token",
        tests=tests("contract/test_gateway_engine_deaths.py", "engine/test_engine_api_life.py",
                    "contract/test_gateway_answers.py", PAGEFLEET_ENGINE_KILLS="200", PAGEFLEET_ENGINE_DRAINS="200")),
    Row(23, "the KV allocator and the scheduler as state machines", "0 violations in 10^6 steps",
        tests=tests("property/test_engine_core_scheduler.py", PAGEFLEET_MACHINE_STEPS="1000000")),
    Row(24, "a KV page pool that is 100 % full, preemption, prefix cache",
        "every token equals that of the request run alone",
        tests=tests("engine/test_engine_full_pool.py", "engine/test_engine_parity_tiny.py",
                    "engine/test_engine_parity.py::test_a_long_prompt_is_token_exact_beside_short_ones",
                    "property/test_engine_core_overlap.py", PAGEFLEET_PARITY_REQUESTS="2000",
                    PAGEFLEET_PARITY_CONTEXT="6000")),
    Row(25, "requests by schemathesis, the shapes of known CVEs, slow clients, floods",
        "0 5xx, 0 crashes; other requests are served meanwhile",
        tests=tests("engine/test_engine_openapi.py", "engine/test_engine_api_hostile.py", "contract/test_gateway_hostile.py",
                    PAGEFLEET_API_CASES="50000")),
    Row(26, "search for code that data could run, undeclared ports, and egress", "0 findings",
        tests=tests("unit/test_security_code.py", "unit/test_security_manifests.py")),
    Row(27, "Pod Security `restricted` on every manifest", "0 violations",
        tests=tests("unit/test_security_manifests.py")),
    Row(28, "the whole cluster suite under the shipped Role", "0 unexpected 403; 0 unused verbs",
        tests=Tests(("tests/cluster", "--ignore-glob=*/test_e2e_*"), control_plane=True)),
    Row(29, "specs that try to use the operator's rights (confused deputy)", "100 % rejected",
        tests=tests("unit/test_security_manifests.py")),
    Row(30, "locks pinned by hashes, bills of materials", "0 unpinned packages",
        tests=tests("unit/test_supply_chain.py")),
    Row(31, "memory of operator, gateway and engine under load for 6 hours",
        "0 failed requests; at the measured slope no pod reaches its memory limit within 30 days", programs=("soak",)),
    Row(32, "the operator is upgraded and downgraded; a second CRD version is served",
        "Ready throughout; weights do not change; the upgrade replaces no engine pod",
        tests=tests("faults/test_versions.py", control_plane=True), programs=("upgrade",)),
    Row(33, "the operator's service account token (10 minutes) ends: it was replaced before, or is replaced later",
        "no restart; nothing is written without a token; the next edit takes effect <= 15 s after there is one",
        tests=tests("faults/test_tokens.py", control_plane=True, PAGEFLEET_TOKEN_EXPIRES="1")),
    Row(34, "pods start slowly, crash, run out of memory and are evicted, during a promotion under requests",
        "0 failed requests; no weight without a Ready pod; promoted",
        tests=tests("faults/test_hard_pods.py", control_plane=True, PAGEFLEET_HARD_SECONDS="300")),
)  # fmt: skip
