"""The operator in virtual time: gateways' documents -> slices -> observation -> the real `decide()` -> the stored status."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.rolloutbench.engines import Engine
from bench.rolloutbench.gateways import EPOCH, NAME, NAMESPACE, STICKY_HEADER, Gateway
from bench.rolloutbench.reading import Windows
from bench.rolloutbench.scenario import Scenario

from pagefleet_contract.names import REVISION_LABEL
from pagefleet_operator.domain.base.json_text import loads
from pagefleet_operator.domain.decide import decide
from pagefleet_operator.domain.spec.parse import SpecErrors, parse
from pagefleet_operator.domain.status import codec
from pagefleet_operator.domain.status.engine_load import EngineLoad
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading
from pagefleet_operator.domain.status.plan import Plan
from pagefleet_operator.domain.status.status import Phase, Status
from pagefleet_operator.kube.client import written
from pagefleet_operator.kube.store import ServiceKey
from pagefleet_operator.metrics.history import Past

KEY: ServiceKey = (NAMESPACE, NAME)
STORED_EVERY = 5  # decisions; the status goes through JSON then, as it does every time in a cluster


def spec_of(scenario: Scenario, number: int) -> dict[str, Any]:
    """Return an InferenceService's spec; another number is another revision. Fields that are left out have their defaults."""
    scaling: dict[str, Any] = {"mode": "external", "min": scenario.replicas, "max": scenario.replicas}
    if scenario.max_replicas is not None:
        scaling = {"min": scenario.replicas, "max": scenario.max_replicas}
    spec: dict[str, Any] = {
        "model": {"source": "hf://bench/model", "servedName": "bench"},
        "engine": {"image": f"docker.io/bench/engine:{number}", "args": ["--max-num-seqs=64"]},
        "resources": {"cpu": "4", "memory": "16Gi"},
        "scaling": scaling,
    }
    rollout: dict[str, Any] = {}
    if scenario.steps is not None:
        rollout["steps"] = [dict(step) for step in scenario.steps]
    if scenario.guard is not None:
        rollout["guard"] = dict(scenario.guard)
    if scenario.canary_prompts != 1:
        # Only requests that stay with a revision can be longer there.
        rollout.setdefault("route", {})["stickyBy"] = f"header/{STICKY_HEADER}"
    if rollout:
        spec["rollout"] = rollout
    return spec


class Operator:
    """One service's decisions. `engines` returns the pods of each revision."""

    def __init__(self, scenario: Scenario, gateways: Sequence[Gateway], clock: Callable[[], float]) -> None:
        self.status, self.generation, self.raw = Status(), 1, spec_of(scenario, 1)
        self.replicas: dict[str, int] = {}
        self.plan: Plan | None = None
        self._clock = clock
        self.windows, self._past = Windows(gateways, clock), Past()
        self._scales = scenario.max_replicas is not None
        self._memo: dict[str, object] = {}
        self._decided, self.stored_every = 0, STORED_EVERY
        if isinstance(errors := parse(self.raw), SpecErrors):
            raise ValueError(errors.message)

    def edit(self, spec: dict[str, Any]) -> None:
        self.raw, self.generation = spec, self.generation + 1

    def decide(self, engines: Mapping[str, Sequence[Engine]]) -> Plan:
        """Observe, decide, and store the status as the API server would."""
        now = self._clock() + EPOCH
        judged = bool(self.status.canary) or self.status.rollout.phase is Phase.WATCHING
        read = None
        if judged or self._scales:
            read = self.windows.read(judged=True)
        if not judged:
            self._memo = {}
        revisions = {name: _revision(name, self.replicas.get(name, 0), own) for name, own in engines.items()}
        if self._scales:
            revisions = self._past.remembered(KEY, revisions, now)
        observation = Observation(
            namespace=NAMESPACE,
            name=NAME,
            uid="uid",
            generation=self.generation,
            spec=self.raw,
            status=self.status,
            revisions=revisions,
            slices=read,
            image="operator:1",
            load=self.windows.load,
            memo=self._memo,
        )
        plan = decide(observation, now)
        self.plan, self.status = plan, plan.status
        self._decided += 1
        if self._decided % self.stored_every == 0 and plan.document is not None:
            self.status = codec.load(loads(written(plan.document).decode()), codec.Parts.known(self._memo))
        for child in plan.children:
            if child["kind"] == "Deployment":
                labels: Any = child["metadata"]
                wanted: Any = child["spec"]
                self.replicas[labels["labels"][REVISION_LABEL]] = wanted["replicas"]
        for name in plan.delete:
            self.replicas.pop(name, None)
        return plan


def _revision(name: str, replicas: int, engines: Sequence[Engine]) -> RevisionReading:
    return RevisionReading(name, replicas, tuple(_pod(engine) for engine in engines))


def _pod(engine: Engine) -> PodReading:
    load = EngineLoad(running=engine.running + engine.in_prompt, waiting=engine.waiting)
    born = engine.born + EPOCH
    return PodReading(engine.name, True, False, born, born, load=load, load_age=1.0)
