"""`pagefleet rollout promote|skip|pause|resume|abort|retry|undo`: requests an action and waits for the operator's answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from pagefleet_cli.base import options
from pagefleet_cli.base.cluster import Cluster, Target
from pagefleet_cli.base.errors import FAILED, TIMED_OUT, CommandError, fail, readable_errors
from pagefleet_cli.base.output import terminal
from pagefleet_cli.rollout.actions import Action, ask, await_answer
from pagefleet_cli.rollout.revisions import chosen, revisions
from pagefleet_contract.names import SYSTEM_NAMESPACE

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the operator's answer.")]
Timeout = Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the answer.")]
HELP = {
    Action.PROMOTE: "Skip the remaining steps: wait for capacity, then send all requests to the canary.",
    Action.SKIP: "End the present step and begin the next.",
    Action.PAUSE: "Hold the rollout at its present step; the guard can still roll it back.",
    Action.RESUME: "Continue after a pause.",
    Action.ABORT: "Roll back now and reject the revision: it is not tried again until `retry`.",
    Action.RETRY: "Start the rejected revision of the present spec again.",
}


def complete_revision(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Hashes of the service's stored revisions."""
    # An option still without its value ends click's parsing: the arguments are left where they were.
    name = context.params.get("name") or next(iter(context.args), "")
    try:
        typed = options.typed(context)
        entries = revisions(Cluster(typed, options.COMPLETION_SECONDS).service(str(name))) if name else []
    except CommandError:
        return []
    return [
        (entry["hash"], str(entry.get("created", ""))[:19]) for entry in entries if entry["hash"].startswith(incomplete)
    ]


def register(app: typer.Typer) -> None:
    """Add the commands to `pagefleet rollout`."""
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
        typer.Option(
            "--to", help="A stored revision; the previous stable one when omitted.", autocompletion=complete_revision
        ),
    ] = None,
    wait: Wait = True,
    timeout: Timeout = 30.0,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Make a stored revision stable again. The revision of the present spec is rejected until the spec changes."""
    act(name, Action.UNDO, to, wait, timeout, Target(namespace, kubeconfig, context))


def act(name: str, action: Action, revision: str | None, wait: bool, timeout: float, target: Target) -> None:
    """Request the action, wait, report. Exit codes: 0 done or not waited for, 1 refused, 3 no answer in time."""
    console = terminal()
    with readable_errors():
        cluster = Cluster(target)
        service = cluster.service(name)
        hash_ = chosen(revisions(service), revision)["hash"] if revision else None
        written = ask(cluster, service, action, hash_)
        if written.replaced:
            console.print(f"this replaces {written.replaced}: the operator had not answered it yet", markup=False)
        if not wait:
            console.print(f"{name}: {action.value} requested (id {written.id})", markup=False)
            return
        outcome = await_answer(cluster, name, written, timeout)
    if outcome is None:
        fail(
            f"{name}: the operator has not answered {action.value} within {timeout:g} s. The request stays "
            f"and is answered when the operator runs (kubectl get pods -n {SYSTEM_NAMESPACE})",
            TIMED_OUT,
        )
    if not outcome.done:
        fail(f"{name}: {action.value} refused: {outcome.message}", FAILED)
    console.print(f"{name}: {outcome.message or f'{action.value} done'}", markup=False)
