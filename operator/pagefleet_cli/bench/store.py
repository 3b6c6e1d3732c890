"""Saves benchmarks on this machine for later comparison: one file for each run, none overwritten."""

from __future__ import annotations

import datetime
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.bench.profile import Profile, ProfileError, dump, parse
from pagefleet_cli.bench.requests import Sample
from pagefleet_cli.bench.run import Run

VERSION = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
STAMP = "%Y%m%dT%H%M%S%fZ"


@dataclass(frozen=True)
class SavedRun:
    """A run as it was saved. `time` is an RFC 3339 time."""

    run: Run
    profile: Profile
    url: str
    model: str
    time: str


def folder() -> Path:
    """~/.local/share/pagefleet/bench, or below XDG_DATA_HOME."""
    root = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local/share")
    return Path(root) / "pagefleet/bench"


def save(name: str, saved: SavedRun, root: Path) -> Path:
    """Write the run under `name` and return the file. Raises CommandError."""
    check(name)
    moment = datetime.datetime.fromisoformat(saved.time).astimezone(datetime.UTC)
    target = root / name / f"{moment.strftime(STAMP)}.json"
    document = {
        "version": VERSION, "time": saved.time, "url": saved.url, "model": saved.model, "profile": dump(saved.profile),
        "seconds": saved.run.seconds, "cut": saved.run.cut, "samples": [asdict(sample) for sample in saved.run.samples],
    }  # fmt: skip
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x") as file:
            json.dump(document, file)
    except OSError as error:
        raise CommandError(f"--save: {target} cannot be written: {error.strerror or error}") from error
    return target


def load(reference: str, root: Path) -> tuple[str, SavedRun]:
    """The newest run under NAME, or of NAME@DAY (2026-11-14) the newest up to the end of that day. Raises CommandError."""
    name, _, day = reference.partition("@")
    check(name)
    files = sorted((root / name).glob("*.json"))
    if not files:
        known = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
        raise CommandError(f"--compare: no run is saved as {name!r}; saved: {', '.join(known) or 'none'}")
    if day:
        files = [path for path in files if path.name[:8] <= _day(day)]
        if not files:
            raise CommandError(f"--compare: {name!r} has no run up to {day}")
    return f"{name} of {files[-1].stem}", read(files[-1])


def read(path: Path) -> SavedRun:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        samples = tuple(Sample(**entry) for entry in document["samples"])
        run = Run(samples, document["seconds"], document["cut"])
        profile = parse(json.dumps(document["profile"]))
        return SavedRun(run, profile, document["url"], document["model"], document["time"])
    except (OSError, KeyError, TypeError, ValueError, ProfileError) as error:
        raise CommandError(f"{path} cannot be read as a saved benchmark: {error!r}") from error


def unlike(before: SavedRun, model: str, profile: Profile) -> list[str]:
    """List the settings in which two runs differ."""
    differences = []
    if before.model != model:
        differences.append(f"the model was {before.model}, not {model}")
    then, now = dump(before.profile), dump(profile)
    for key in sorted({*then, *now} - {"seed", "endpoints"}):
        if then.get(key) != now.get(key):
            differences.append(f"{key} was {then.get(key, 'not given')}, not {now.get(key, 'given')}")
    return differences


def check(name: str) -> None:
    """Raises CommandError for what is no name of a benchmark."""
    if not NAME.fullmatch(name):
        raise CommandError(
            f"{name!r} is not a valid name for a benchmark: use letters, digits, '.', '_' and '-', at most 64"
        )


def _day(text: str) -> str:
    try:
        return datetime.date.fromisoformat(text).strftime("%Y%m%d")
    except ValueError as error:
        raise CommandError(f"--compare: {text!r} is not a day such as 2026-11-14") from error
