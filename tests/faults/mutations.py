"""Fields of the CRD changed on live objects (row 9): `PYTHONPATH=tests python -m faults.mutations [--count 400] [--seed N]`.
On a control plane of its own, services that serve get one field of their spec replaced, and put back. The API server must
refuse the value, or the operator must decide within 20 s and report it; with the old value everything must be as before.
The operator's own rules accept half of the values, so that not only the API server is tested."""

from __future__ import annotations

import asyncio
import copy
import itertools
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from faults.operator_process import Operator
from faults.report import store
from faults.runs import Ground
from faults.story import KINDS, quiet
from rich.console import Console
from support.cluster.own_plane import own_plane
from support.crd_mutations import LEAVES, MUTATIONS, changed
from support.private import alone
from support.sample_service import sample

from pagefleet_local.fleet.kubectl import until
from pagefleet_local.fleet.view import View
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.kube.client import Api, ApiError

NAMESPACE, PORT, SERVICES, TIMEOUT_SECONDS = "mutations", 18257, 4, 180.0
GROUP = f"/apis/pagefleet.io/v1alpha1/namespaces/{NAMESPACE}/inferenceservices"
DECIDED_SECONDS, RESTORED_SECONDS = 20.0, 60.0
CHILDREN = ("Deployment", "Service", "PodDisruptionBudget")
console = Console(highlight=False)
Document = dict[str, Any]


@dataclass(frozen=True)
class Mutation:
    path: tuple[str | int, ...]
    value: Any

    def __str__(self) -> str:
        return f"spec.{'.'.join(map(str, self.path))} = {self.value!r:.60}"


@dataclass(frozen=True)
class State:
    """The part of a service's state that must return when an old value is put back."""

    stable: str
    canary: str
    weights: dict[str, int]
    ready: bool
    children: frozenset[str]


@dataclass
class Live:
    """Services under mutation. `outcomes` counts the mutations by their result; `slowest` seconds to a decision."""

    api: Api
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    slowest: float = 0.0

    async def view(self, name: str) -> View:
        return View(await self.api.get(f"{GROUP}/{name}"))

    async def state(self, name: str) -> State:
        view, children = await self.view(name), set()
        for kind in CHILDREN:
            for item in (await self.api.get(KINDS[kind].format(NAMESPACE)))["items"]:
                owners = item["metadata"].get("ownerReferences") or ()
                if any(owner["uid"] == view.document["metadata"]["uid"] for owner in owners):
                    children.add(f"{kind}/{item['metadata']['name']}")
        ready = view.is_true("Ready") and quiet(view)
        return State(view.stable, view.canary, view.weights, ready, frozenset(children))

    async def lane(self, name: str, coming: Iterator[Mutation]) -> None:
        """Try one mutation after the other on one service."""
        await self.api.create(GROUP, service(name))
        await until(lambda: self._ready(name), timeout=TIMEOUT_SECONDS, what=f"{name} is Ready")
        before = await self.state(name)
        for mutation in coming:
            good = (await self.view(name)).document["spec"]
            outcomes = await self._mutated(name, good, mutation)
            self.outcomes[outcomes] += 1
            if outcomes != "refused":
                await self._write(name, good)
                if not await self._restored(name, before):
                    self.problems.append(f"{mutation}, put back: {await self.state(name)}, was {before}")
                    return  # the next mutation would be judged by the state that this one left

    async def _ready(self, name: str) -> bool:
        return (await self.state(name)).ready

    async def _mutated(self, name: str, good: Document, mutation: Mutation) -> str:
        """Try a mutation. Return "refused", "unchanged", "undecided", "Ready", or the reason that the operator reported."""
        try:
            await self._write(name, changed(copy.deepcopy(good), mutation.path, copy.deepcopy(mutation.value)))
        except ApiError as error:
            if not 400 <= error.status < 500:
                self.problems.append(f"{mutation}: the API server answered {error}")
            return "refused"
        began = time.monotonic()
        while time.monotonic() - began < DECIDED_SECONDS:
            view = await self.view(name)
            if view.document["spec"] == good:
                return "unchanged"
            condition = view.condition("Ready")
            now = view.document["metadata"]["generation"]
            if view.status.get("observedGeneration") == now == condition.get("observedGeneration"):
                self.slowest = max(self.slowest, time.monotonic() - began)
                return "Ready" if condition["status"] == "True" else str(condition["reason"])
            await asyncio.sleep(0.1)
        self.problems.append(f"{mutation}: not decided within {DECIDED_SECONDS:g} s: {view.condition('Ready')}")
        return "undecided"

    async def _write(self, name: str, spec: Any) -> None:
        """Make a user's PUT of the whole spec; again when the operator wrote the status in between."""
        while True:
            document = (await self.view(name)).document
            try:
                await self.api.replace(f"{GROUP}/{name}", {**document, "spec": spec})
            except ApiError as error:
                if error.status != 409:
                    raise
            else:
                return

    async def _restored(self, name: str, before: State) -> bool:
        end = time.monotonic() + RESTORED_SECONDS
        while time.monotonic() < end:
            if await self.state(name) == before:
                return True
            await asyncio.sleep(0.3)
        return False


def service(name: str) -> Document:
    """Return the sample, whose canaries do not advance by themselves during the test."""
    document = sample()
    document["metadata"] = {"name": name, "namespace": NAMESPACE}
    document["spec"]["rollout"]["steps"] = [{"weight": 50, "hold": "1h"}]
    return document


def chosen(count: int, seed: int) -> list[Mutation]:
    """Choose so many mutations, the same for the same seed. The operator's rules read every second one as another spec."""
    chance, good = random.Random(seed), service("any")["spec"]
    before = parse(good)
    every = [Mutation(path, value) for path, value in itertools.product(LEAVES, MUTATIONS)]
    chance.shuffle(every)

    def taken(mutation: Mutation) -> bool:
        after = parse(changed(copy.deepcopy(good), mutation.path, copy.deepcopy(mutation.value)))
        return isinstance(after, Spec) and after != before

    accepted = list(itertools.islice(filter(taken, every), count // 2))
    others = [mutation for mutation in every if mutation not in accepted]
    mutations = accepted + others[: count - len(accepted)]
    chance.shuffle(mutations)
    return mutations


async def mutated(ground: Ground, mutations: Sequence[Mutation]) -> Live:
    """Run all mutations on a control plane whose namespace exists."""
    live, coming = Live(ground.api), iter(mutations)
    async with Operator(ground.layout, ground.folder, NAMESPACE, PORT) as operator:
        await until(operator.ready, timeout=TIMEOUT_SECONDS, what="the operator is ready")
        async with asyncio.TaskGroup() as group:
            for number in range(SERVICES):
                group.create_task(live.lane(f"m{number}", coming))
        log = operator.log.read_text()
        if "Traceback" in log:
            live.problems.append(f"a traceback in the operator's log: {log[log.index('Traceback') :][:1500]}")
        if operator.deaths:
            live.problems.append(f"the operator ended {operator.deaths} times")
    return live


def summary(live: Live) -> str:
    """Return the figures in a line."""
    counts = ", ".join(f"{count} {what}" for what, count in live.outcomes.most_common())
    return f"{live.outcomes.total()} mutations: {counts}; decided within {live.slowest:.1f} s"


def main(
    count: Annotated[int, typer.Option(help="how many")] = int(os.environ.get("PAGEFLEET_LIVE_MUTATIONS", "400")),
    seed: Annotated[int, typer.Option(help="chooses them")] = 0,
    private: Annotated[str, typer.Option(help="the name of its folders")] = "mutations",
) -> None:
    """Change fields of live objects, and put them back."""
    alone(private)
    live = asyncio.run(_play(count, seed))
    for problem in live.problems:
        console.print(f"[red]{problem}[/red]")
    console.print(summary(live))
    store("mutations", not live.problems, summary(live))
    raise typer.Exit(1 if live.problems else 0)


async def _play(count: int, seed: int) -> Live:
    with tempfile.TemporaryDirectory() as folder:
        async with own_plane(NAMESPACE) as plane:
            return await mutated(Ground(plane.api, plane.layout, plane.node, Path(folder)), chosen(count, seed))


if __name__ == "__main__":
    typer.run(main)
