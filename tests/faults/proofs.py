"""Runs the tests that prove rows of the reliability table, at the campaign's size, and stores their results:
`PYTHONPATH=tests python -m faults.proofs [--row N]... [--small]`. Rows that need a control plane get one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

import typer
from faults.report import store
from faults.rows import ROWS, Row
from rich.console import Console
from support.private import alone

from pagefleet_local.fleet.install import CHECKOUT

console = Console(highlight=False)


def main(
    row: Annotated[list[int] | None, typer.Option(help="only this row; may be given again")] = None,
    small: Annotated[bool, typer.Option(help="at the size of `make test`")] = False,
    private: Annotated[str, typer.Option(help="the name of a control plane's folders")] = "proofs",
) -> None:
    """Run the tests of the reliability table."""
    alone(private)
    failed = [
        one.number for one in ROWS if one.tests and one.number in (row or [one.number]) and not _prove(one, small)
    ]
    raise typer.Exit(1 if failed else 0)


def _prove(row: Row, small: bool) -> bool:
    if row.tests is None:
        return True
    more = {} if small else dict(row.tests.more)
    console.print(f"row {row.number}: {' '.join(row.tests.paths)} {' '.join(f'{k}={v}' for k, v in more.items())}")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={result}",
            *row.tests.paths,
        ]
        process = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **more}, check=False)
        suite = ElementTree.parse(result).getroot().find("testsuite") if result.exists() else None
    counts = (
        {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        if suite is not None
        else {}
    )
    passed = process.returncode == 0 and counts.get("tests", 0) > counts.get("skipped", 0)
    words = f"{counts.get('tests', 0) - counts.get('skipped', 0)} tests"
    bad = counts.get("failures", 0) + counts.get("errors", 0)
    words += f", {bad} failed" if bad or not passed else " passed"
    words += "".join(f", {name}={value}" for name, value in more.items())
    store(f"tests-{row.number}", passed, f"{words} in {time.monotonic() - begun:.0f} s")
    return passed


if __name__ == "__main__":
    typer.run(main)
