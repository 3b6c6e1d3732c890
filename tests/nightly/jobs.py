"""The jobs of a night, in their order: what each shows, its command, what the machine must have, and how long it takes.

Minutes are of two cores with everything cached. In commands `{python}` is this interpreter, `{bin}` its folder, `{seed}` the
night's seed and `{folder}` the folder of the night's results. `make test` runs what is missing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Need(StrEnum):
    ROOT = "root"
    NODE = "a node"
    DOCKER = "Docker and kind"
    GPU = "a GPU"
    VLLM = "room for vLLM"
    HISTORY = "git's history"


Command = tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """`quick` is the command of a quick night; None: it has no small size, and a quick night leaves it out."""

    name: str
    shows: str
    minutes: float
    command: Command
    quick_minutes: float
    quick: Command | None
    needs: frozenset[Need] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def limit_minutes(self) -> float:
        """A job that runs longer hangs, also on a slow machine."""
        return 4 * self.minutes + 60


def program(
    name: str,
    shows: str,
    minutes: float,
    module: str,
    options: Iterable[str] = (),
    quick_minutes: float | None = None,
    quick: Iterable[str] = (),
    needs: Iterable[Need] = (Need.ROOT,),
) -> Job:
    """A module of tests/ with options; in a quick night with the options `quick` instead."""
    command = ("{python}", "-m", module)
    return Job(
        name, shows, minutes, (*command, *options), quick_minutes or minutes, (*command, *quick), frozenset(needs)
    )


def bench(
    name: str,
    shows: str,
    minutes: float,
    quick_minutes: float,
    *needs: Need,
    options: Iterable[str] = (),
    check: Iterable[str] = ("--check",),
    quick: Iterable[str] = ("--quick",),
    json: bool = True,
) -> Job:
    """A program of bench/ that compares its figures with their targets."""
    job = f"bench-{name.replace('_', '-')}"
    written = ("--json", f"{{folder}}/{job}.json") if json else ()
    command = ("{python}", f"bench/{name}.py", *check)
    return Job(
        job,
        shows,
        minutes,
        (*command, *options, *written),
        quick_minutes,
        (*command, *quick, *written),
        frozenset(needs),
    )


ROOT, NODE = Need.ROOT, Need.NODE
RANDOM_ORDER = ("{python}", "-m", "pytest", "-q", "--random-order", "--random-order-seed={seed}")
STATISTICS = (
    "{python}",
    "-m",
    "pytest",
    "-q",
    "-n",
    "auto",
    "tests/property/test_watch_day.py",
    "tests/property/test_guard_in_flight.py",
    "tests/unit/operator/test_operator_adjusted.py",
    "tests/unit/operator/test_operator_demand_burst.py",
)
ONE_SERVICE = ("--services", "100", "--poisoned", "1")
JOBS = (
    Job("prepare", "what the others need is fetched and built", 15, ("{bin}/pagefleet-local", "prepare"), 1,
        ("{bin}/pagefleet-local", "prepare"), frozenset({ROOT, NODE})),
    Job("random-order", "no unit or property test needs another before it", 12, (*RANDOM_ORDER, "tests/unit", "tests/property"),
        1, (*RANDOM_ORDER, "tests/unit/cli", "tests/unit/contract")),
    Job("statistics", "watch, guard and scaler: more seeds, longer traces", 5, STATISTICS, 5, STATISTICS,
        environment={"PAGEFLEET_SEEDS": "8", "PAGEFLEET_NOISE_HOURS": "3"}),
    program("fuzz", "new examples for every hypothesis test, new requests to the engine", 60, "nightly.fuzz",
            ("--minutes", "60", "--seed", "{seed}"), 5, ("--minutes", "1", "--seed", "{seed}"), needs=()),
    Job("clients", "the clients of other projects do their ordinary work against an engine", 15,
        ("{python}", "-m", "pytest", "-q", "tests/clients"), 15, ("{python}", "-m", "pytest", "-q", "tests/clients", "-k", "sdk")),
    Job("plugin", "kubectl pagefleet as krew installs it, without Python", 4, ("{python}", "-m", "pytest", "-q", "tests/plugin"), 4, None),
    Job("crd", "the CRD on Kubernetes' current CRD server, which must be there", 15,
        ("{python}", "-m", "pytest", "-q", "tests/crd"), 15, ("{python}", "-m", "pytest", "-q", "tests/crd"),
        environment={"PAGEFLEET_CRD_SERVER": "required"}),
    program("mutation", "which change of a decision no test notices", 60, "mutation.main", (), 5,
            ("rollout", "--module", "steps"), needs=()),
    program("idle", "what an idle operator writes, and a busy one", 18, "faults.idle", (), 5, ("--seconds", "60", "--busy", "90")),
    program("flood", "a storm of alerts, with kills", 5, "faults.flood", (), 2, ("--seconds", "5")),
    program("mutations", "any value in any field of live objects", 12, "faults.mutations", (), 3, ("--count", "30")),
    program("upgrade", "an old operator's objects under this one and back", 6, "faults.upgrade",
            needs=(ROOT, Need.HISTORY)),
    program("scale", "1,000 services: time, memory, restart, edits", 12, "scale.main", (), 4,
            ("--services", "50", "--edits", "10")),
    program("poisoned", "one service that breaks the schema among 100", 8, "scale.main", ONE_SERVICE, 8, ONE_SERVICE),
    program("proofs", "the reliability table's tests at the campaign's size", 300, "faults.proofs", (), 30, ("--small",)),
    program("campaign", "every fault of the reliability table", 180, "faults.campaign", ("--private", "campaign"), 8,
            ("--private", "campaign", "--row", "5")),
    program("stories", "five more lives of a service, killed at every write", 75, "faults.stories", (), 8,
            ("--kind", "actions", "--every", "15")),
    Job("peers", "vLLM, llama.cpp and models for bench-engine-cpu", 20, ("{python}", "bench/peers.py"), 0, None),
    Job("routers", "nginx and other routers for bench-gateway", 5, ("{python}", "bench/gateway.py", "--make-peers"), 0, None),
    bench("engine_api", "what a streamed token costs in the engine's API process", 2, 1),
    bench("gateway", "the gateway's cost and limits, beside others", 12, 3, ROOT),
    bench("gateway_picking", "how well the gateway picks pods, beside others' rules", 12, 2, json=False),
    bench("first_token", "the gateway's time to the first token is the client's", 9, 3),
    bench("rollout_guard", "the verdict on simulated fleets", 300, 2, options=("--resume",)),
    bench("rollback", "seconds and failures of a rollback", 20, 4, ROOT),
    bench("tenants", "a hostile tenant beside 100 services", 14, 4, json=False),
    bench("autoscaling", "our scaler beside others' rules", 75, 10),
    bench("engine_cpu", "our engine beside vLLM and llama.cpp", 75, 5),
    bench("simulator_reality", "the simulator's prediction beside a real engine", 6, 1),
    bench("fleet_reality", "the simulator's replica-hours beside a real fleet that scales", 35, 9, ROOT, NODE),
    bench("engine_features", "what paging, caching, chunks and drafts bring", 5, 1),
    bench("scenarios", "the examples' workloads keep their promises on simulated GPUs", 10, 1),
    bench("serving_styles", "paged serving beside static batches", 10, 1),
    bench("scaling_cluster", "burst, spares, zero and drain on the real node", 20, 5, ROOT, NODE, quick=("wake",)),
    bench("changes", "how many files a typical change touches", 1, 1),
    bench("newcomer", "from git clone to the first answer, nothing cached", 20, 8, ROOT, NODE, check=("--check", "1200"),
          quick=("--warm",)),
    *(
        Job(f"demo-{hogs}", f"the demo beside {hogs} busy loops", 12,
            ("{bin}/pagefleet-local", "demo", "--hogs", str(hogs)), 4,
            ("{bin}/pagefleet-local", "demo", "--hogs", str(hogs), "--only", "serve"), frozenset({ROOT, NODE}))
        for hogs in (2, 6)
    ),
    Job("kind", "the demo on a cluster made by kind", 20, ("{bin}/pagefleet-local", "kind"), 10,
        ("{bin}/pagefleet-local", "kind", "--only", "serve"), frozenset({Need.DOCKER})),
    Job("vllm", "a real vLLM on the real node", 40, ("{python}", "-m", "pytest", "-q", "tests/vllm"), 0, None,
        frozenset({ROOT, NODE, Need.VLLM})),
    Job("nixl-peer", "vLLM with NIXL for the job nixl", 40, ("{python}", "bench/peers.py", "nixl"), 0, None, frozenset({Need.VLLM})),
    Job("nixl", "two real vLLMs that give each other KV pages", 5, ("{python}", "-m", "pytest", "-q", "tests/nixl"), 0, None,
        frozenset({Need.VLLM})),
    program("released-engines", "that vLLM's and SGLang's released parsers and metrics are those of tests/data/released", 3,
            "support.released_engines", ("check",), 3, ("check",), (Need.VLLM,)),
    Job("gpu", "kernels, engine and their figures on a GPU", 30, ("make", "test-gpu"), 0, None, frozenset({Need.GPU})),
    program("soak", "days until a pod under load reaches its memory limit", 362, "faults.soak", (), 4,
            ("--minutes", "2")),
)  # fmt: skip
