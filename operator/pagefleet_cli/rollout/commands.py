"""`pagefleet rollout status|why|history|diff`: shows a rollout. Reads only."""

from __future__ import annotations

import datetime
import time
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from pagefleet_cli.base import options
from pagefleet_cli.base.cluster import Cluster, Document, Target
from pagefleet_cli.base.faults import FAILED, TIMED_OUT, Fault, explained, fail
from pagefleet_cli.base.options import Output
from pagefleet_cli.base.output import plain, show, terminal
from pagefleet_cli.rollout import act_commands
from pagefleet_cli.rollout.live import picture
from pagefleet_cli.rollout.progress import End, end, progress, sentence
from pagefleet_cli.rollout.revisions import coloured, difference, history, pair
from pagefleet_cli.rollout.why import log, waiting

REPEAT_SECONDS = 30.0  # a pipe gets a line so often even when nothing has changed
app = typer.Typer(no_args_is_help=True, help="Rollouts: watch, explain, act.")
act_commands.register(app)
Hash = Annotated[str | None, typer.Argument(help="The beginning of a revision's hash.")]


@app.command()
def status(
    name: options.Service,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until it has ended.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0, help="Seconds to watch at most.")] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
    namespace: options.Namespace = None,
    output: options.Format = Output.TABLE,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Steps, weights, quantiles, verdict. Exit code: 1 when rolled back, 3 when --timeout is over, else 0."""
    with explained():
        cluster = Cluster(Target(namespace, kubeconfig, context))
        found = cluster.service(name)
        if watch and output in (Output.TABLE, Output.WIDE):
            found = _watched(cluster, found, timeout, interval, output is Output.WIDE)
        else:
            until = time.monotonic() + timeout if timeout is not None else None
            while watch and end(found) is End.UNDER_WAY and (until is None or time.monotonic() < until):
                time.sleep(interval)
                found = cluster.service(name)
            show(
                output,
                plain(found.get("status") or {}),
                lambda: [picture(progress(found, time.time()), wide=output is Output.WIDE)],
            )
    match end(found):
        case End.ROLLED_BACK:
            raise typer.Exit(FAILED)
        case End.UNDER_WAY if watch:
            fail(f"{name}: still under way after {timeout:g} s", TIMED_OUT)
        case _:
            return


def _watched(cluster: Cluster, found: Document, timeout: float | None, interval: float, wide: bool) -> Document:
    """Shows the service until its rollout has ended or time is over; its last state. An absent API server is waited for."""
    console, name, note = Console(highlight=False), str(found["metadata"]["name"]), ""
    until = time.monotonic() + timeout if timeout is not None else None
    with Live(console=console, auto_refresh=False, transient=False) as live:
        shown = ""
        while True:
            seen = progress(found, time.time())
            if console.is_terminal:
                live.update(picture(seen, note, wide), refresh=True)
            elif (line := _steady(found)) != shown:
                typer.echo(sentence(seen))
                shown = line
            if end(found) is not End.UNDER_WAY or (until is not None and time.monotonic() >= until):
                return found
            time.sleep(interval)
            try:
                found, note = cluster.service(name), ""
            except Fault as fault:
                if "does not answer" not in str(fault):
                    raise
                note = str(fault)


def _steady(found: Document) -> str:
    """The line less the numbers that change with every request: a pipe gets a line when something has happened."""
    seen, period = progress(found, 0.0), time.monotonic() // REPEAT_SECONDS
    return f"{seen.phase} {seen.weights} {[step.place for step in seen.steps]} {seen.outcome} {seen.paused} {period}"


@app.command()
def why(
    name: options.Service,
    namespace: options.Namespace = None,
    output: options.Format = Output.TABLE,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """What was decided and on which numbers, newest last, and what the rollout waits for now."""
    with explained():
        found = Cluster(Target(namespace, kubeconfig, context)).service(name)
    now = time.time()
    decisions = (found.get("status") or {}).get("decisions") or []
    reasons = waiting(found, now)
    lines = [*log(found, now), *(f"Now: {reason}" for reason in reasons)]
    show(output, {"decisions": decisions, "waiting": reasons}, lambda: [Text("\n".join(lines))])


@app.command("history")
def show_history(
    name: options.Service,
    namespace: options.Namespace = None,
    output: options.Format = Output.TABLE,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """The kept revisions, oldest first, and what each changed."""
    with explained():
        found = Cluster(Target(namespace, kubeconfig, context)).service(name)
    now = datetime.datetime.now(datetime.UTC)
    document = (found.get("status") or {}).get("revisions") or []
    show(output, document, lambda: [history(found, now, output is Output.WIDE)])


@app.command()
def diff(
    name: options.Service,
    first: Hash = None,
    second: Hash = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """What differs between two revisions: stable and canary, one named and the stable, or two named."""
    with explained():
        found = Cluster(Target(namespace, kubeconfig, context)).service(name)
        old, new = pair(found, first, second)
    lines = difference(old, new)
    terminal().print(coloured(lines) if lines else Text(f"{old['hash']} and {new['hash']} are the same"))
