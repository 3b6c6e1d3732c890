"""`Cluster` with warm spares. Nothing here decides.

The spares load, sleep, wake, and refuse to sleep while a stream is open, as engines do. They are Ready only with their
gate open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from support.virtual.cluster import Cluster

from pagefleet_contract.names import SPARE_LABEL
from pagefleet_operator.domain.status.observation import Observation, PodReading, RevisionReading, SpareReading
from pagefleet_operator.domain.status.plan import Plan

WAKING_SECONDS = 2.0


@dataclass
class Spare:
    """Times are of `Cluster.real`."""

    name: str
    created: float
    loaded_at: float
    opened: bool = False
    since: float | None = None
    asleep: bool = False
    awake_at: float = 0.0
    open_until: float = 0.0  # of its longest stream
    answers: bool = True

    def ready(self, now: float) -> bool:
        return self.opened and self.loaded(now)

    def loaded(self, now: float) -> bool:
        return now >= self.loaded_at and not self.asleep and now >= self.awake_at


class SpareCluster(Cluster):
    def __init__(self, seed: int, spares: int) -> None:
        super().__init__(seed)
        self.spares: dict[str, list[Spare]] = {}
        self.made = 0
        self.scale(2, spares)

    def scale(self, replicas: int, spares: int) -> None:
        self.spec = {
            **self.spec, "scaling": {"min": replicas, "max": 6, "mode": "external", "warmSpares": spares}
        }  # fmt: skip
        self.generation += 1

    def measure(self, engines: bool = True) -> None:
        """Measure no traffic: rollouts are moved by hand here."""

    def lose(self, revision: str, number: int) -> None:
        """End a replica, whose place another takes."""
        pods = self.pods.get(revision) or []
        if pods:
            pods[number % len(pods)] = self.real + 20

    def asleep(self, revision: str) -> int:
        return sum(1 for spare in self.spares.get(revision, []) if spare.asleep and not spare.opened)

    def observe(self) -> Observation:
        observation = super().observe()
        revisions = dict(observation.revisions)
        for name, spares in self.spares.items():
            reading = revisions.get(name) or RevisionReading(name, None)
            revisions[name] = replace(
                reading, spare_replicas=len(spares), spare_uid=f"uid-{name}", spares=tuple(map(self._reading, spares))
            )
        return replace(observation, revisions=revisions)

    def _reading(self, spare: Spare) -> SpareReading:
        ready = spare.ready(self.real)
        shift = self.now - self.real
        return SpareReading(
            pod=PodReading(spare.name, ready, False, spare.created + shift, self.now if ready else None),
            address=f"ip-{spare.name}",
            opened=spare.opened,
            since=None if spare.since is None else spare.since + shift,
            loaded=spare.loaded(self.real),
            asleep=spare.asleep if spare.answers and self.real >= spare.loaded_at else None,
        )

    def apply(self, plan: Plan) -> None:
        spare = [child for child in plan.children if SPARE_LABEL in child["metadata"]["labels"]]  # type: ignore[index]
        super().apply(replace(plan, children=tuple(child for child in plan.children if child not in spare)))
        self.plan = plan
        for child in spare:
            revision = child["metadata"]["labels"]["pagefleet.io/revision"]  # type: ignore[index]
            here = self.spares.setdefault(revision, [])
            while len(here) < child["spec"]["replicas"]:  # type: ignore[index]
                self.made += 1
                here.append(Spare(f"spare-{self.made}", self.real, self.real + self.source.uniform(0, 20)))
            del here[child["spec"]["replicas"] :]  # type: ignore[index]
        for gone in plan.withdrawn:
            self.spares.pop(gone.uid.removeprefix("uid-"), None)
        for name in plan.delete:
            self.spares.pop(name, None)
        known = {spare.name: spare for spares in self.spares.values() for spare in spares}
        for order in plan.spares:
            if order.pod in known:
                self._obey(known[order.pod], order.opened, order.asleep)

    def _obey(self, spare: Spare, opened: bool | None, asleep: bool | None) -> None:
        if opened is not None and opened != spare.opened:
            spare.opened, spare.since = opened, self.real
            if not opened:
                spare.open_until = self.real + self.source.uniform(0, 15)
        if not spare.answers or self.real < spare.loaded_at:
            return
        if asleep and self.real >= spare.open_until:
            spare.asleep = True
        elif asleep is False and spare.asleep:
            spare.asleep, spare.awake_at = False, self.real + WAKING_SECONDS
