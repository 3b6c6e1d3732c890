"""Keeps benchmarks on this machine, so that next week's can be compared: one file for each run, none overwritten."""

from __future__ import annotations

import datetime
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pagefleet_cli.base.faults import Fault
from pagefleet_cli.bench.profile import Profile, ProfileError, dump, parse
from pagefleet_cli.bench.requests import Sample
from pagefleet_cli.bench.run import Run

VERSION = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
STAMP = "%Y%m%dT%H%M%S%fZ"


@dataclass(frozen=True)
class Kept:
    """A run as it was saved. `time` is an RFC 3339 time."""

    run: Run
    profile: Profile
    url: str
    model: str
    time: str


def folder() -> Path:
    """~/.local/share/pagefleet/bench, or what XDG_DATA_HOME says."""
    root = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local/share")
    return Path(root) / "pagefleet/bench"


def save(name: str, kept: Kept, root: Path) -> Path:
    """Write the run under `name`; the file. Raises Fault."""
    _check(name)
    moment = datetime.datetime.fromisoformat(kept.time).astimezone(datetime.UTC)
    target = root / name / f"{moment.strftime(STAMP)}.json"
    document = {
        "version": VERSION, "time": kept.time, "url": kept.url, "model": kept.model, "profile": dump(kept.profile),
        "seconds": kept.run.seconds, "cut": kept.run.cut, "samples": [asdict(sample) for sample in kept.run.samples],
    }  # fmt: skip
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x") as file:
            json.dump(document, file)
    except OSError as error:
        raise Fault(f"--save: {target} cannot be written: {error.strerror or error}") from error
    return target


def load(reference: str, root: Path) -> tuple[str, Kept]:
    """The newest run under NAME, or of NAME@DAY (2026-11-14) the newest up to the end of that day. Raises Fault."""
    name, _, day = reference.partition("@")
    _check(name)
    found = sorted((root / name).glob("*.json"))
    if not found:
        known = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
        raise Fault(f"--compare: nothing is saved as {name!r}; saved are {', '.join(known) or 'no runs at all'}")
    if day:
        found = [path for path in found if path.name[:8] <= _day(day)]
        if not found:
            raise Fault(f"--compare: {name!r} has no run up to {day}")
    return f"{name} of {found[-1].stem}", read(found[-1])


def read(path: Path) -> Kept:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        samples = tuple(Sample(**entry) for entry in document["samples"])
        run = Run(samples, document["seconds"], document["cut"])
        profile = parse(json.dumps(document["profile"]))
        return Kept(run, profile, document["url"], document["model"], document["time"])
    except (OSError, KeyError, TypeError, ValueError, ProfileError) as error:
        raise Fault(f"{path} cannot be read as a saved benchmark: {error!r}") from error


def unlike(before: Kept, model: str, profile: Profile) -> list[str]:
    """What makes two runs hard to compare."""
    found = []
    if before.model != model:
        found.append(f"the model was {before.model}, not {model}")
    then, now = dump(before.profile), dump(profile)
    found += [f"{key} was {then[key]}, not {now[key]}" for key in now if key != "seed" and then[key] != now[key]]
    return found


def _check(name: str) -> None:
    if not NAME.fullmatch(name):
        raise Fault(f"{name!r} is no name for a benchmark: letters, digits, '.', '_' and '-', at most 64")


def _day(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).strftime("%Y%m%d")
    except ValueError as error:
        raise Fault(f"--compare: {text!r} is no day such as 2026-11-14") from error
