"""Runs Go's own `go`, and shows how far it is."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from pagefleet_local.assets.debian import AssetError
from pagefleet_local.base.console import Report

TAIL_LINES = 20  # of the output of a command that failed


def compile_with(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], report: Report, packages: int
) -> None:
    """Run one go command in `folder` and count the packages that it names, of about `packages`. Raises AssetError with the end
    of its output. The command ends with the caller: what it has compiled by then stays in GOCACHE."""
    tail: list[str] = []
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if process.stdout is None:
        raise RuntimeError("the process has no pipe for its output")
    try:
        for count, line in enumerate(process.stdout, 1):
            tail = [*tail[-TAIL_LINES:], line]
            report(f"{count} of about {packages} packages")
        status = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        process.stdout.close()
    if status:
        raise AssetError(f"{' '.join(command[:3])} failed:\n{''.join(tail)}")
