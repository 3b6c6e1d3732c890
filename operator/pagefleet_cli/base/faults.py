"""What went wrong, for people: API errors become sentences that name the cause and what to do. Pure but for `fail`.

Never shows a traceback for something a person can mend.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console

FAILED, TIMED_OUT = 1, 3  # exit codes; 2 is typer's own, for wrong usage


class Fault(Exception):
    """Something a person can mend; the message says how."""


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print `message` on standard error and exit."""
    Console(stderr=True, soft_wrap=True, highlight=False).print("[red]pagefleet:[/red]", end=" ")
    Console(stderr=True, soft_wrap=True, highlight=False).print(message, markup=False)
    raise typer.Exit(code)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turns a Fault in the block into a message and exit code 1."""
    try:
        yield
    except Fault as fault:
        fail(str(fault))


def api_fault(status: int, reason: str, body: str, what: str) -> Fault:
    """The Fault for an answer of the API server that was no success. `what` is what was asked for."""
    answer = _status(body)
    message = str(answer.get("message") or reason)
    match status:
        case 401:
            return Fault("the API server does not accept this kubeconfig's credentials (401): log in again")
        case 403:
            return Fault(f"forbidden: {message}")
        case 404 if not (answer.get("details") or {}).get("name"):
            return Fault(
                "the API server knows no InferenceServices: the CRD is not installed (kubectl apply -f crds/), "
                "or this is another cluster (see --context)"
            )
        case 404:
            return Fault(f"{what}: not found")
        case 409:
            return Fault(f"{what}: changed by somebody else at the same moment; try again")
        case 422:
            return Fault(f"{what}: refused by the API server: {message}")
        case _:
            return Fault(f"{what}: the API server answers {status} {message}")


def unreachable(host: str, error: BaseException) -> Fault:
    """The Fault when no connection came about. The innermost cause is the one that says something."""
    cause: BaseException = error
    while isinstance(inner := getattr(cause, "reason", None) or cause.__cause__, BaseException):
        cause = inner
    return Fault(f"the API server {host} does not answer: {str(cause).rsplit('>: ', 1)[-1].rsplit(': ', 1)[-1]}")


def unknown_service(name: str, namespace: str, known: Sequence[tuple[str, str]]) -> Fault:
    """`known` are (namespace, name) of the services that exist. Near names come first, then other namespaces."""
    elsewhere = [space for space, other in known if other == name and space != namespace]
    here = [other for space, other in known if space == namespace]
    near = difflib.get_close_matches(name, here, n=3, cutoff=0.5)
    text = f"there is no InferenceService {name!r} in namespace {namespace!r}"
    if near:
        return Fault(f"{text}; did you mean {' or '.join(near)}?")
    if elsewhere:
        return Fault(f"{text}; there is one in {', '.join(sorted(elsewhere))} (use -n)")
    if here:
        return Fault(f"{text}; there are {', '.join(sorted(here)[:8])}")
    return Fault(f"{text}; there are none in it")


def _status(body: str) -> dict[str, Any]:
    """The metav1.Status in an error's body; {} when it holds something else."""
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) and document.get("kind") == "Status" else {}
