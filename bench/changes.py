"""Counts the source files that typical changes touch. Real changes are patches, applied to a copy of the checkout and run.

Each patch of bench/changes names its change, the most files it may touch, and Python lines that must hold afterwards. Generated
files, tests and documentation are not counted: their generators write them. `--check` exits 1 when a patch does not apply,
touches too many files, or does not work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

CHECKOUT = Path(__file__).resolve().parents[1]
FOLDER = CHECKOUT / "bench/changes"
ROOTS = ("contract", "operator", "gateway", "engine", "kernels", "local")


@dataclass(frozen=True)
class Result:
    """One change: the files that its patch edits, the most that are allowed, and why it failed ("" when it works)."""

    change: str
    files: list[str]
    most: int
    failure: str

    @property
    def holds(self) -> bool:
        return not self.failure and len(self.files) <= self.most


def measure(patch: Path, copy: Path) -> Result:
    """Apply one patch to `copy`, run its check, and take the patch back."""
    head = [line.partition(": ") for line in patch.read_text().split("\ndiff --git", 1)[0].splitlines()]
    fields = {name: value for name, _, value in head}
    check = "\n".join(value for name, _, value in head if name == "Check")
    listed = _run(copy, "git", "apply", "--numstat", str(patch))
    files = [line.split("\t")[2] for line in listed.stdout.splitlines()]
    failure = _failure(_run(copy, "git", "apply", str(patch)))
    if not failure:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(copy / root) for root in ROOTS)}
        failure = _failure(_run(copy, sys.executable, "-c", check, environment=environment))
        _run(copy, "git", "apply", "--reverse", str(patch))
    return Result(fields["Change"], files, int(fields["Most files"]), failure)


def _run(folder: Path, *command: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _failure(done: subprocess.CompletedProcess[str]) -> str:
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when a change touches too many files or fails")
    parser.add_argument("--quick", action="store_true", help="the same: all changes take a few seconds")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        subprocess.run(["git", "clone", "-q", "--shared", str(CHECKOUT), str(copy)], check=True)
        results = [measure(patch, copy) for patch in sorted(FOLDER.glob("*.patch"))]
    table = Table("change", "files", "allowed", "edited", "works")
    for one in results:
        edited = "\n".join(one.files)
        table.add_row(one.change, str(len(one.files)), str(one.most), edited, one.failure or "yes")
    Console(width=150).print(table)
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    return int(options.check and not all(one.holds for one in results))


if __name__ == "__main__":
    sys.exit(main())
