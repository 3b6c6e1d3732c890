"""Times a newcomer's path: `git clone`, `make up`, the first answer; with an empty cache, as on a new machine.

    sudo .venv/bin/python bench/newcomer.py [--warm] [--json FILE] [--check SECONDS]

It plays the commands of README in a clone of this checkout's HEAD and takes the fleet down again. Root is needed, and no
other local fleet may run. Packages that apt-get has installed on this machine before stay installed: the program lists those
that were installed, because a machine without them takes longer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

CHECKOUT = Path(__file__).resolve().parents[1]
# What `make up` prints when the first whole answer has come through the gateway (the demo's scene `serve`).
ANSWERED = "the answer names Paris"
STAGE = re.compile(r"^- (?P<name>.+): done in (?P<seconds>[\d.]+) s$")
ENVIRONMENT = re.compile(r"^pagefleet: environment ready after (?P<seconds>\d+) s$")
FROM_DEBIAN = ("buildah", "debootstrap", "conntrack", "dnsmasq", "ethtool", "socat", "iptables", "g++")


class Failed(RuntimeError):
    """A command of the path ended badly; the message has the end of what it printed."""


@dataclass
class Journey:
    """Seconds since the start of the clone, and how long each stage took that says so."""

    cloned: float = 0.0
    answered: float = 0.0
    ready: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)


def stages(line: str) -> Iterator[tuple[str, float]]:
    """Read from a printed line which stage has ended, and its seconds."""
    if match := STAGE.match(line):
        yield match["name"], float(match["seconds"])
    if match := ENVIRONMENT.match(line):
        yield "Python environment", float(match["seconds"])


def travel(work: Path, environment: dict[str, str]) -> Journey:
    """Clone and `make up`. Raises Failed."""
    path, began = Journey(), time.monotonic()
    clone = work / "pagefleet"
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(CHECKOUT), str(clone)], check=True)
    path.cloned = time.monotonic() - began
    process = subprocess.Popen(
        ["make", "up"], cwd=clone, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if process.stdout is None:
        raise RuntimeError("the process has no pipe for its output")
    printed: list[str] = []
    for line in process.stdout:
        printed.append(line)
        sys.stdout.write(f"{time.monotonic() - began:7.1f} s  {line}")
        path.stages |= dict(stages(line.strip()))
        if ANSWERED in line and not path.answered:
            path.answered = time.monotonic() - began
    if process.wait() or not path.answered:
        raise Failed("make up: " + "".join(printed[-15:]))
    path.ready = time.monotonic() - began
    return path


def down(work: Path, environment: dict[str, str]) -> None:
    clone = work / "pagefleet"
    if (clone / ".venv/bin/pagefleet-local").exists():
        subprocess.run([".venv/bin/pagefleet-local", "down"], cwd=clone, env=environment, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warm", action="store_true", help="keep using this machine's caches (a second visit)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--check", type=float, help="status 1 when the first answer takes longer than so many seconds")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("make up needs root: run this with sudo")
    there = [name for name in FROM_DEBIAN if shutil.which(name)]
    with tempfile.TemporaryDirectory(prefix="pagefleet-newcomer-") as name:
        work = Path(name)
        fresh = {} if arguments.warm else {"PAGEFLEET_CACHE": str(work / "cache"), "PIP_NO_CACHE_DIR": "1"}
        environment = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"} | fresh
        try:
            path = travel(work, environment)
        except Failed as failure:
            sys.stderr.write(f"{failure}\n")
            return 2
        finally:
            down(work, environment)
    table = Table(
        "", "seconds", title="From git clone to the first answer" + (", caches warm" if arguments.warm else "")
    )
    for stage, seconds in path.stages.items():
        table.add_row(f"  {stage}", f"{seconds:.0f}")
    for label, seconds in (("cloned", path.cloned), ("first answer", path.answered), ("make up returned", path.ready)):
        table.add_row(label, f"{seconds:.0f}", style="bold")
    Console().print(table)
    Console().print(f"{os.cpu_count()} cores; on this machine before: {', '.join(there) or 'nothing of Debian'}")
    if arguments.json:
        arguments.json.write_text(json.dumps({**asdict(path), "warm": arguments.warm, "there": there}, indent=1) + "\n")
    return int(arguments.check is not None and path.answered > arguments.check)


if __name__ == "__main__":
    sys.exit(main())
