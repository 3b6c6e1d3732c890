"""`pagefleet rollout status|why|history|diff`: shows a rollout. Reads only."""

from __future__ import annotations

import datetime
import time
from typing import Annotated

import typer
from rich.live import Live
from rich.text import Text

from pagefleet_cli.base import options
from pagefleet_cli.base.cluster import Cluster, Document, Target
from pagefleet_cli.base.errors import FAILED, TIMED_OUT, PassingError, fail, readable_errors
from pagefleet_cli.base.options import Output
from pagefleet_cli.base.output import plain, show, terminal
from pagefleet_cli.base.screen import Screen, visible
from pagefleet_cli.rollout import act_commands
from pagefleet_cli.rollout.live import picture
from pagefleet_cli.rollout.progress import End, end, progress, sentence
from pagefleet_cli.rollout.revisions import coloured, difference, history, pair
from pagefleet_cli.rollout.why import log, waiting

REPEAT_SECONDS = 30.0  # a pipe gets a line this often even without a change
app = typer.Typer(no_args_is_help=True, help="Watch, explain and control rollouts.")
act_commands.register(app)
Hash = Annotated[str | None, typer.Argument(help="The beginning of a revision's hash.")]


@app.command()
def status(
    name: options.Service,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Watch until the rollout has ended.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0, help="Watch for at most so many seconds.")] = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two reads.")] = 1.0,
    namespace: options.Namespace = None,
    output: options.Format = Output.TABLE,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Show steps, weights, quantiles and the verdict. Exit code: 1 when rolled back, 3 after --timeout, else 0."""
    with readable_errors():
        cluster = Cluster(Target(namespace, kubeconfig, context))
        service = cluster.service(name)
        if watch and output in (Output.TABLE, Output.WIDE):
            service = _watched(cluster, service, timeout, interval, output is Output.WIDE)
        else:
            until = time.monotonic() + timeout if timeout is not None else None
            while watch and end(service) is End.UNDER_WAY and (until is None or time.monotonic() < until):
                time.sleep(interval)
                service = _again(cluster, name)[0] or service
            show(
                output,
                plain(service.get("status") or {}),
                lambda: [picture(progress(service, time.time()), wide=output is Output.WIDE)],
            )
    match end(service):
        case End.ROLLED_BACK:
            raise typer.Exit(FAILED)
        case End.UNDER_WAY if watch:
            fail(f"{name}: the rollout is still under way after {timeout:g} s", TIMED_OUT)
        case _:
            return


def _watched(cluster: Cluster, service: Document, timeout: float | None, interval: float, wide: bool) -> Document:
    """Show the service until its rollout ends or the timeout is over, and return its last state. Waits for an absent API server."""
    console, name, note = Screen(highlight=False), str(service["metadata"]["name"]), ""
    until = time.monotonic() + timeout if timeout is not None else None
    with Live(console=console, auto_refresh=False, transient=False) as live:
        shown = ""
        while True:
            now = progress(service, time.time())
            if console.is_terminal:
                live.update(picture(now, note, wide), refresh=True)
            elif (line := _steady(service)) != shown:
                typer.echo(visible(sentence(now)))
                shown = line
            if end(service) is not End.UNDER_WAY or (until is not None and time.monotonic() >= until):
                return service
            time.sleep(interval)
            found, note = _again(cluster, name)
            service = found or service


def _again(cluster: Cluster, name: str) -> tuple[Document | None, str]:
    """The service, or None and the error while the API server is away. Raises CommandError for any other one."""
    try:
        return cluster.service(name), ""
    except PassingError as error:
        return None, str(error)


def _steady(service: Document) -> str:
    """The state without the numbers that change with every request: a pipe gets a line only when something has happened."""
    now, period = progress(service, 0.0), time.monotonic() // REPEAT_SECONDS
    return f"{now.phase} {now.weights} {[step.place for step in now.steps]} {now.outcome} {now.paused} {period}"


@app.command()
def why(
    name: options.Service,
    namespace: options.Namespace = None,
    output: options.Format = Output.TABLE,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Explain the rollout: the decisions with their numbers, newest last, and the reason for the present wait."""
    with readable_errors():
        service = Cluster(Target(namespace, kubeconfig, context)).service(name)
    time_now = time.time()
    decisions = (service.get("status") or {}).get("decisions") or []
    reasons = waiting(service, time_now)
    lines = [*log(service, time_now), *(f"Now: {reason}" for reason in reasons)]
    show(output, {"decisions": decisions, "waiting": reasons}, lambda: [Text("\n".join(lines))])


@app.command("history")
def show_history(
    name: options.Service,
    namespace: options.Namespace = None,
    output: options.Format = Output.TABLE,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """List the stored revisions, oldest first, with the fields that each changed."""
    with readable_errors():
        service = Cluster(Target(namespace, kubeconfig, context)).service(name)
    now = datetime.datetime.now(datetime.UTC)
    document = (service.get("status") or {}).get("revisions") or []
    show(output, document, lambda: [history(service, now, output is Output.WIDE)])


@app.command()
def diff(
    name: options.Service,
    first: Hash = None,
    second: Hash = None,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Show the difference of two revisions: stable and canary, a named one and the stable, or two named ones."""
    with readable_errors():
        service = Cluster(Target(namespace, kubeconfig, context)).service(name)
        old, new = pair(service, first, second)
    lines = difference(old, new)
    terminal().print(coloured(lines) if lines else Text(f"{old['hash']} and {new['hash']} are the same"))
