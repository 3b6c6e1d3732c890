"""The lives of `lives.py`, killed at every write like the first story (row 2 of the reliability table):
`PYTHONPATH=tests python -m faults.stories [--kind NAME] [--every 1]`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
from faults.cases import Case, at_write
from faults.lives import Actions, Evidence, Groups, Replicas, Routes
from faults.outages import announced, gateway
from faults.proxy import Fault
from faults.report import store
from faults.runs import Ground, StoryResult, run_all
from faults.story import Story
from rich.console import Console
from support.cluster.definitions import define
from support.cluster.gateway_api_install import accept_routes, install
from support.cluster.leader_worker_sets import Controller, crd
from support.cluster.own_plane import own_plane
from support.cluster.pod_engines import PodEngines
from support.private import alone

AT_ONCE = 3
console = Console(highlight=False)


KINDS: dict[str, type[Story]] = {
    "actions": Actions,
    "replicas": Replicas,
    "evidence": Evidence,
    "groups": Groups,
    "routes": Routes,
}


def main(
    kind: Annotated[list[str] | None, typer.Option(help="only this story; may be given again")] = None,
    every: Annotated[int, typer.Option(help="strike at every so-manieth write")] = 1,
    private: Annotated[str, typer.Option(help="the name of its folders")] = "stories",
) -> None:
    """Kill the operator at the writes of five stories."""
    alone(private)
    results = asyncio.run(_play(kind or list(KINDS), every))
    failed = [one for one in results if one.problems or not one.struck]
    for one in failed:
        console.print(f"[red]{one.name}[/red]: {'; '.join(one.problems[:3]) or 'the fault never struck'}")
    kinds = ", ".join(kind or KINDS)
    store("stories", not failed, f"{len(results)} stories ({kinds}), {len(failed)} failed")
    raise typer.Exit(1 if failed or not results else 0)


async def _play(kinds: list[str], every: int) -> list[StoryResult]:
    results = []
    with tempfile.TemporaryDirectory() as folder:
        async with own_plane() as plane:
            numbers = itertools.count(1)  # a namespace has the name of one story only
            for name in kinds:
                ground = Ground(plane.api, plane.layout, plane.node, Path(folder), numbers, KINDS[name])
                async with _world(ground, name):
                    results += await _killed(ground, name, every)
    return results


@contextlib.asynccontextmanager
async def _world(ground: Ground, name: str) -> AsyncIterator[None]:
    """Run what a story needs beside the operator: a gateway that the operator reads, and engines; a controller of another kind."""
    match name:
        case "evidence":
            Evidence.engines = PodEngines()
            async with announced(ground), gateway(ground, Evidence.engines):
                yield
        case "groups":
            await define(ground.api, crd())
            async with _beside(Controller(ground.api).run()):
                yield
        case "routes":
            await install(ground.api, "httproutes")
            async with _beside(accept_routes(ground.api)):
                yield
        case _:
            yield


@contextlib.asynccontextmanager
async def _beside(controller: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    running = asyncio.create_task(controller)
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _killed(ground: Ground, name: str, every: int) -> list[StoryResult]:
    """Run a story without faults, and one for each write before and after which the operator is killed."""
    calm = await ground.calm()
    console.print(f"{name}: {calm.certain} certain of {calm.writes} writes, {calm.durations}")
    cases = [
        Case(2, f"{name}-{what}-write-{number}", at_write(number, fault))
        for number in range(1, calm.certain + 1, every)
        for what, fault in (("before", Fault(kill_before=True)), ("after", Fault(kill_after=True)))
    ]
    return await run_all(ground, cases, calm, AT_ONCE, lambda one: console.print(f"{one.name}: {one.problems or 'ok'}"))


if __name__ == "__main__":
    typer.run(main)
