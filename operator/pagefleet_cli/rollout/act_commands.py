"""`pagefleet rollout promote|skip|pause|resume|abort|retry|undo`: ask the operator, and wait for what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from pagefleet_cli.base import options
from pagefleet_cli.base.cluster import Cluster, Target
from pagefleet_cli.base.faults import FAILED, TIMED_OUT, Fault, explained, fail
from pagefleet_cli.base.output import terminal
from pagefleet_cli.rollout.actions import Action, ask, await_answer
from pagefleet_cli.rollout.revisions import chosen, revisions
from pagefleet_contract.names import SYSTEM_NAMESPACE

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the operator's answer.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer.")]
HELP = {
    Action.PROMOTE: "Skip the remaining steps: capacity first, then all requests go to the canary.",
    Action.SKIP: "End the present step and begin the next.",
    Action.PAUSE: "Hold the rollout where it is; the guard still rolls back.",
    Action.RESUME: "Go on after a pause.",
    Action.ABORT: "Roll back now; the revision is remembered as rejected.",
    Action.RETRY: "Forget that the spec's present revision was rejected and start it again.",
}


def complete_revision(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Hashes of the service's kept revisions."""
    # An option still without its value ends click's parsing: the arguments are left where they were.
    name = context.params.get("name") or next(iter(context.args), "")
    try:
        typed = options.typed(context)
        found = revisions(Cluster(typed, options.COMPLETION_SECONDS).service(str(name))) if name else []
    except Fault:
        return []
    return [
        (entry["hash"], str(entry.get("created", ""))[:19]) for entry in found if entry["hash"].startswith(incomplete)
    ]


def register(app: typer.Typer) -> None:
    """Adds the commands to `pagefleet rollout`."""
    for action, text in HELP.items():
        app.command(action.value, help=text)(_command(action))
    app.command("undo")(undo)


def _command(action: Action) -> Callable[..., None]:
    def command(
        name: options.Service,
        wait: Wait = True,
        timeout: Timeout = 30.0,
        namespace: options.Namespace = None,
        kubeconfig: options.Kubeconfig = None,
        context: options.Context = None,
    ) -> None:
        act(name, action, None, wait, timeout, Target(namespace, kubeconfig, context))

    return command


def undo(
    name: options.Service,
    to: Annotated[
        str | None,
        typer.Option("--to", help="A kept revision; the last good one when omitted.", autocompletion=complete_revision),
    ] = None,
    wait: Wait = True,
    timeout: Timeout = 30.0,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Make a kept revision stable again; what the spec names is remembered as rejected until it changes."""
    act(name, Action.UNDO, to, wait, timeout, Target(namespace, kubeconfig, context))


def act(name: str, action: Action, revision: str | None, wait: bool, timeout: float, target: Target) -> None:
    """Ask, wait, tell. Exit codes: 0 done or not waited for, 1 refused, 3 no answer in time."""
    console = terminal()
    with explained():
        cluster = Cluster(target)
        service = cluster.service(name)
        hash_ = chosen(revisions(service), revision)["hash"] if revision else None
        asked = ask(cluster, service, action, hash_)
        if asked.replaced:
            console.print(f"this replaces {asked.replaced}, which the operator had not answered", markup=False)
        if not wait:
            console.print(f"{name}: {action.value} asked for (id {asked.id})", markup=False)
            return
        found = await_answer(cluster, name, asked, timeout)
    if found is None:
        fail(
            f"{name}: the operator has not answered {action.value} within {timeout:g} s. It is still asked for and "
            f"will be acted on when the operator runs (kubectl get pods -n {SYSTEM_NAMESPACE})",
            TIMED_OUT,
        )
    if not found.done:
        fail(f"{name}: {action.value} refused: {found.message}", FAILED)
    console.print(f"{name}: {found.message or f'{action.value} done'}", markup=False)
