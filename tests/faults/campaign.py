"""The whole campaign: `PYTHONPATH=tests python -m faults.campaign [--row N]... [--case NAME] [--seed N] [--report FILE]`.

Every case of every row, a few at once, on a control plane of its own. Finished stories are stored in a file of lines, so
an interrupted campaign goes on where it was. A failing case is named with the command that plays it again.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from faults import outages, stored_results
from faults import report as page
from faults.cases import cases
from faults.runs import Ground, StoryResult, run_all
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from support.cluster.own_plane import own_plane
from support.private import alone

ROWS = {
    2: "killed at every write, before and after its commit",
    3: "killed twice",
    4: "killed, then old lists of children",
    5: "events of four seconds come only as their end",
    6: "watches: cut, truncated, 410, another ERROR, silent",
    7: "writes answered 409, 422, 429, 500, 503, 403, or hung after the commit",
    8: "API server, or etcd, killed and away, at writes of many stories; requests through a gateway meanwhile",
}
console = Console(highlight=False)


def main(
    row: Annotated[list[int] | None, typer.Option(help="only this row; may be given again")] = None,
    case: Annotated[str, typer.Option(help="only this case")] = "",
    seed: Annotated[int, typer.Option(help="chooses the cases that are sampled")] = 0,
    at_once: Annotated[int, typer.Option(help="stories at the same time")] = 3,
    report: Annotated[
        Path | None, typer.Option(help="write the reliability table here, from all stored results")
    ] = None,
    fresh: Annotated[bool, typer.Option(help="forget the stories of an earlier campaign")] = False,
    again: Annotated[bool, typer.Option(help="tell once more what failed")] = False,
    private: Annotated[str, typer.Option(help="run in a network namespace of its own; its folders get this name")] = "",
) -> None:
    """Play the reliability campaign."""
    if private:
        alone(private)
    stories = asyncio.run(_play(row or list(ROWS), case, seed, at_once, fresh, again))
    failed = [one for one in stories if one.problems or not one.struck]
    for one in failed:
        console.print(f"[red]{one.name}[/red]: {'; '.join(one.problems[:3]) or 'the fault never struck'}")
        console.print(f"  again: PYTHONPATH=tests python -m faults.campaign --seed {seed} --case {one.name}")
    console.print(table(stories))
    if report:
        page.write(report, seed)
    raise typer.Exit(1 if failed else 0)


async def _play(rows: list[int], name: str, seed: int, at_once: int, fresh: bool, again: bool) -> list[StoryResult]:
    ended = asyncio.current_task()
    if ended is not None:  # interrupted: finished stories stay stored, and everything that was started is taken down
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.cancel)
    with tempfile.TemporaryDirectory() as folder:
        async with own_plane() as plane:
            ground = Ground(plane.api, plane.layout, plane.node, Path(folder))
            return await _play_cases(ground, rows, name, seed, at_once, fresh or bool(name), again)


async def _play_cases(
    ground: Ground, rows: list[int], name: str, seed: int, at_once: int, fresh: bool, again: bool
) -> list[StoryResult]:
    console.print("two stories without faults, for the truth ...")
    calm = await ground.calm()
    writes = calm.writes if fresh else stored_results.writes(calm.writes)
    known = {} if fresh else stored_results.known(seed)
    if again:
        known = {key: story for key, story in known.items() if not story.problems and story.struck}
    requested = [one for one in cases(writes, seed) if one.row in rows and name in ("", one.name)]
    left = sorted((one for one in requested if one.name not in known), key=lambda one: rows.index(one.row))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        stored_results.storing(seed, writes, fresh=fresh and not name) as store,
        Progress(*columns, console=console) as progress,
    ):
        task = progress.add_task("stories", total=len(left))

        def done(story: StoryResult) -> None:
            store(story)
            progress.advance(task)
            if not console.is_terminal:
                console.print(f"{story.name}: {'; '.join(story.problems[:2]) or 'ok'}")

        new_results = await run_all(ground, left, calm, at_once, done)
        if 8 in rows and not name:
            for daemon, points in outages.batches(writes, seed):
                names = outages.names(daemon, points)
                if all(each in known for each in names):
                    new_results += [known[each] for each in names]
                    continue
                for story in await outages.played(ground, calm, daemon, points):
                    new_results.append(story)
                    done(story)
    return [known[one.name] for one in requested if one.name in known] + new_results


def table(stories: list[StoryResult]) -> str:
    """Markdown: a line for each row."""
    lines = ["| row | faults | tries | failures | slowest chapter |", "|---|---|---|---|---|"]
    for row, what in ROWS.items():
        ours = [one for one in stories if one.row == row]
        if ours:
            failures = sum(bool(one.problems) or not one.struck for one in ours)
            slowest = max((max(one.seconds.values(), default=0.0) for one in ours), default=0.0)
            lines.append(f"| {row} | {what} | {len(ours)} | {failures} | {slowest:.1f} s |")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
