"""Errors for people: API errors become sentences that name the cause and what to do. Pure but for `fail`.

Never shows a traceback for an error that a person can fix.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import typer

from pagefleet_cli.base.screen import Screen

FAILED, TIMED_OUT = 1, 3  # exit codes; 2 is typer's own, for wrong usage
PASSING = frozenset({429, 500, 502, 503, 504})  # of an API server that is overloaded, starts, or has no leader of etcd


class CommandError(Exception):
    """An error that a person can fix; the message names the fix."""


class PassingError(CommandError):
    """An API server that may answer a moment later: who waits for something asks again."""


def fail(message: str, code: int = FAILED) -> NoReturn:
    """Print `message` on standard error and exit."""
    Screen(stderr=True, soft_wrap=True, highlight=False).print("[red]pagefleet:[/red]", end=" ")
    Screen(stderr=True, soft_wrap=True, highlight=False).print(message, markup=False)
    raise typer.Exit(code)


@contextlib.contextmanager
def readable_errors() -> Iterator[None]:
    """Turn a CommandError of the block into a message and exit code 1."""
    try:
        yield
    except CommandError as error:
        fail(str(error))


def api_error(status: int, reason: str, body: str, name: str) -> CommandError:
    """The CommandError for a failed request to the API server. `name` is the object of the request."""
    answer = _status(body)
    message = str(answer.get("message") or reason)
    match status:
        case 401:
            return CommandError("the API server does not accept this kubeconfig's credentials (401): log in again")
        case 403:
            return CommandError(f"forbidden: {message}")
        case 404 if not (answer.get("details") or {}).get("name"):
            return CommandError(
                "the API server has no InferenceServices: the CRD is not installed (kubectl apply -f crds/), "
                "or this is another cluster (see --context)"
            )
        case 404:
            return CommandError(f"{name}: not found")
        case 409:
            return CommandError(f"{name}: somebody else changed it at the same moment; try again")
        case 422:
            return CommandError(f"{name}: refused by the API server: {message}")
        case _:
            kind = PassingError if status in PASSING else CommandError
            return kind(f"{name}: the API server answers {status} {message}")


def unreachable(host: str, error: BaseException) -> PassingError:
    """The error for a failed connection. Its innermost cause has the useful message."""
    cause: BaseException = error
    while isinstance(inner := getattr(cause, "reason", None) or cause.__cause__, BaseException):
        cause = inner
    return PassingError(f"the API server {host} does not answer: {str(cause).rsplit('>: ', 1)[-1].rsplit(': ', 1)[-1]}")


def unknown_service(name: str, namespace: str, known: Sequence[tuple[str, str]]) -> CommandError:
    """Suggest similar names of the namespace first, then other namespaces. `known`: (namespace, name) of all services."""
    elsewhere = [space for space, other in known if other == name and space != namespace]
    here = [other for space, other in known if space == namespace]
    near = difflib.get_close_matches(name, here, n=3, cutoff=0.5)
    text = f"there is no InferenceService {name!r} in namespace {namespace!r}"
    if near:
        return CommandError(f"{text}; did you mean {' or '.join(near)}?")
    if elsewhere:
        return CommandError(f"{text}; it exists in {', '.join(sorted(elsewhere))} (use -n)")
    if here:
        return CommandError(f"{text}; it has {', '.join(sorted(here)[:8])}")
    return CommandError(f"{text}; the namespace has none")


def _status(body: str) -> dict[str, Any]:
    """The metav1.Status in an error's body; {} when it holds something else."""
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) and document.get("kind") == "Status" else {}
