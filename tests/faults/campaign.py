"""The whole campaign: `PYTHONPATH=tests python -m faults.campaign [--row N]... [--case NAME] [--seed N] [--report FILE]`.

Every case of every row, a few at once, on a control plane of its own. What has been told is kept in a file of lines, so
an interrupted campaign goes on where it was. A failing case is named with the command that plays it again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from faults import outages
from faults.cases import cases
from faults.runs import Ground, Told, tell_all
from private import alone
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from statusnode import StatusNode

from pagefleet_local import cleanup
from pagefleet_local.fleet.install import CHECKOUT, install_crd
from pagefleet_local.fleet.kubectl import Kubectl
from pagefleet_local.paths import control_plane_layout
from pagefleet_local.up import Options, up
from pagefleet_operator.cluster.api import Api

ROWS = {
    2: "killed at every write, before and after its commit",
    3: "killed twice",
    4: "killed, then old lists of children",
    5: "events of four seconds come only as their end",
    6: "watches: cut, truncated, 410, another ERROR, silent",
    7: "writes answered 409, 422, 429, 500, 503, 403, or hung after the commit",
    8: "API server, or etcd, killed and away, at writes of many stories; requests through a gateway meanwhile",
}
OUTAGE_POINTS, OUTAGE_AT_ONCE = 20, 5
OUTAGE_SECONDS = float(os.environ.get("PAGEFLEET_OUTAGE_SECONDS", "60"))
KEPT = CHECKOUT / "build/campaign.jsonl"
console = Console(highlight=False)


def main(
    row: Annotated[list[int] | None, typer.Option(help="only this row; may be given again")] = None,
    case: Annotated[str, typer.Option(help="only this case")] = "",
    seed: Annotated[int, typer.Option(help="chooses the cases that are sampled")] = 0,
    at_once: Annotated[int, typer.Option(help="stories told at the same time")] = 3,
    report: Annotated[Path | None, typer.Option(help="write a Markdown table here")] = None,
    fresh: Annotated[bool, typer.Option(help="forget what an earlier campaign told")] = False,
    again: Annotated[bool, typer.Option(help="tell once more what failed")] = False,
    private: Annotated[str, typer.Option(help="run in a network namespace of its own; its folders get this name")] = "",
) -> None:
    """Play the reliability campaign."""
    if private:
        alone(private)
    told = asyncio.run(_play(row or list(ROWS), case, seed, at_once, fresh, again))
    failed = [one for one in told if one.problems or not one.struck]
    for one in failed:
        console.print(f"[red]{one.name}[/red]: {'; '.join(one.problems[:3]) or 'the fault never struck'}")
        console.print(f"  again: PYTHONPATH=tests python -m faults.campaign --seed {seed} --case {one.name}")
    console.print(table(told))
    if report:
        report.write_text(table(told) + "\n")
    raise typer.Exit(1 if failed else 0)


async def _play(rows: list[int], name: str, seed: int, at_once: int, fresh: bool, again: bool) -> list[Told]:
    ended = asyncio.current_task()
    if ended is not None:  # told to end: what was told is kept, what was started is taken down
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.cancel)
    layout = control_plane_layout()
    cluster = up(Options(layout=layout, node=False))
    try:
        kubectl = Kubectl(cluster.kubeconfig)
        await install_crd(kubectl, console.print)
        for manifest in ("namespace", "operator-rbac"):
            await kubectl.run("apply", "-f", str(CHECKOUT / f"manifests/base/{manifest}.yaml"))
        async with Api(str(cluster.kubeconfig)) as api:
            node = StatusNode(api)
            await node.register()
            serving = asyncio.create_task(node.run())
            with tempfile.TemporaryDirectory() as folder:
                try:
                    ground = Ground(api, layout, Path(folder))
                    return await _tell(ground, rows, name, seed, at_once, fresh or bool(name), again)
                finally:
                    serving.cancel()
                    await asyncio.gather(serving, return_exceptions=True)
    finally:
        cleanup.down(layout)


async def _tell(
    ground: Ground, rows: list[int], name: str, seed: int, at_once: int, fresh: bool, again: bool
) -> list[Told]:
    console.print("two stories without faults, for the truth ...")
    calm = await ground.calm()
    known = {} if fresh else _known(seed)
    if again:
        known = {key: told for key, told in known.items() if not told.problems and told.struck}
    wanted = [one for one in cases(calm.writes, seed) if one.row in rows and name in ("", one.name)]
    left = sorted((one for one in wanted if one.name not in known), key=lambda one: rows.index(one.row))
    KEPT.parent.mkdir(exist_ok=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with KEPT.open("w" if fresh and not name else "a") as kept, Progress(*columns, console=console) as progress:
        task = progress.add_task("stories", total=len(left))

        def done(told: Told) -> None:
            kept.write(json.dumps({"seed": seed, **asdict(told)}) + "\n")
            kept.flush()
            progress.advance(task)
            if not console.is_terminal:
                console.print(f"{told.name}: {'; '.join(told.problems[:2]) or 'ok'}")

        fresh_told = await tell_all(ground, left, calm, at_once, done)
        if 8 in rows and not name:
            for daemon, writes in outages.batches(calm.writes, seed, OUTAGE_POINTS, OUTAGE_AT_ONCE):
                for told in await outages.told(ground, calm, daemon, writes, OUTAGE_SECONDS):
                    fresh_told.append(told)
                    done(told)
    return [known[one.name] for one in wanted if one.name in known] + fresh_told


def _known(seed: int) -> dict[str, Told]:
    if not KEPT.exists():
        return {}
    lines = [json.loads(line) for line in KEPT.read_text().splitlines()]
    return {
        line["name"]: Told(
            line["name"], line["row"], tuple(line["problems"]), line["seconds"], tuple(line["struck"]), line["deaths"]
        )
        for line in lines
        if line["seed"] == seed
    }


def table(told: list[Told]) -> str:
    """Markdown: a line for each row."""
    lines = ["| row | faults | tries | failures | slowest chapter |", "|---|---|---|---|---|"]
    for row, what in ROWS.items():
        ours = [one for one in told if one.row == row]
        if ours:
            failures = sum(bool(one.problems) or not one.struck for one in ours)
            slowest = max((max(one.seconds.values(), default=0.0) for one in ours), default=0.0)
            lines.append(f"| {row} | {what} | {len(ours)} | {failures} | {slowest:.1f} s |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
