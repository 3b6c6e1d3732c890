"""Turns the failures that a user can fix into one clear message and an exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import CalledProcessError

import typer
from rich.markup import escape

from pagefleet_local.assets.debian import AssetError
from pagefleet_local.base.console import CONSOLE
from pagefleet_local.base.paths import BadSetting
from pagefleet_local.base.preflight import Refused
from pagefleet_local.base.processes import StartFailed

REFUSED, FAILED = 2, 1


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn a refusal or a failed start in the block into one clear message and an exit status."""
    try:
        yield
    except (Refused, BadSetting) as refused:
        CONSOLE.print(f"[red]refused:[/red] {escape(str(refused))}")
        raise typer.Exit(REFUSED) from None
    except (AssetError, StartFailed, OSError, CalledProcessError) as failure:
        print_failure(failure)
        raise typer.Exit(FAILED) from None


def print_failure(failure: BaseException) -> None:
    """Print the failure in its own words: what looks like markup there, such as the [core] of a log, is none."""
    CONSOLE.print(f"[red]failed:[/red] {escape(str(failure))}")
