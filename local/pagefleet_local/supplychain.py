"""Reads the images' locks and compares them with advisories on disk. Never fetches anything.

    python -m pagefleet_local.supplychain --advisories FOLDER-OR-FILE images/locks/*.txt

Advisories are in the OSV format (https://ossf.github.io/osv-schema), one in a file, several in a list, or any number in
a folder: what https://osv.dev offers for the ecosystem PyPI, unpacked. Exit status 1 when a locked version is affected,
or when something in a lock is not pinned by a hash.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^\]]*\])?==(?P<version>[^\s;\\]+)")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")


@dataclass(frozen=True)
class Locked:
    name: str  # canonical
    version: str
    hashes: int


@dataclass(frozen=True)
class Finding:
    package: Locked
    advisory: str
    summary: str


class LockError(ValueError):
    """A lock or an advisory that cannot be read; the message names the file."""


def locked(text: str) -> list[Locked]:
    """The packages of a lock in pip's requirements format. Raises LockError for a line that pins nothing."""
    entries = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = ENTRY.match(line)
        if match is None:
            raise LockError(f"not a pinned package: {line.strip()[:80]!r}")
        entries.append(Locked(canonicalize_name(match["name"]), match["version"], len(HASH.findall(line))))
    return entries


def advisories(path: Path) -> Iterator[Mapping[str, Any]]:
    """Every advisory at `path` that is in force. Raises LockError."""
    for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
        try:
            read = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise LockError(f"{file}: {error}") from error
        for advisory in read if isinstance(read, list) else [read]:
            if not isinstance(advisory, Mapping) or "id" not in advisory:
                raise LockError(f"{file}: not an advisory in the OSV format: it has no `id`")
            if not advisory.get("withdrawn"):
                yield advisory


def findings(packages: Iterable[Locked], known: Iterable[Mapping[str, Any]]) -> list[Finding]:
    by_name = {package.name: package for package in packages}
    matches = []
    for advisory in known:
        for entry in advisory.get("affected") or ():
            named = entry.get("package") or {}
            package = by_name.get(canonicalize_name(str(named.get("name", ""))))
            if package is not None and named.get("ecosystem") == "PyPI" and affected(entry, package.version):
                matches.append(Finding(package, str(advisory["id"]), str(advisory.get("summary") or "")))
    return list(dict.fromkeys(matches))


def affected(entry: Mapping[str, Any], version: str) -> bool:
    """Whether an entry of `affected` names `version` or has it in a range (OSV schema, "Evaluation"). A local part
    (+cpu) makes no difference."""
    ours = Version(Version(version).public)
    if any(_parsed(listed) == ours for listed in entry.get("versions") or ()):
        return True
    return any(
        _within(part.get("events") or (), ours)
        for part in entry.get("ranges") or ()
        if part.get("type") in ("ECOSYSTEM", "SEMVER")
    )


def _within(events: Iterable[Mapping[str, str]], ours: Version) -> bool:
    """Events in the order of their versions; the last one at or below `ours` decides."""
    inside = False
    marks = [(_parsed(text), kind) for event in events for kind, text in event.items()]
    for mark, kind in sorted(((at, kind) for at, kind in marks if at is not None), key=lambda pair: pair[0]):
        if kind == "introduced" and mark <= ours:
            inside = True
        elif (kind == "fixed" and mark <= ours) or (kind == "last_affected" and mark < ours):
            inside = False
    return inside


def _parsed(text: str) -> Version | None:
    try:
        return Version("0" if text == "0" else str(text))
    except InvalidVersion:
        return None


def run() -> int:
    parser = argparse.ArgumentParser(description="Compare locks with advisories, offline.")
    parser.add_argument("--advisories", type=Path, help="a file or folder in the OSV format")
    parser.add_argument("locks", type=Path, nargs="+")
    given = parser.parse_args()
    try:
        packages = {lock: locked(lock.read_text()) for lock in given.locks}
        known = list(advisories(given.advisories)) if given.advisories else []
    except (OSError, LockError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    bad = 0
    for lock, listed in packages.items():
        for package in (one for one in listed if not one.hashes):
            sys.stdout.write(f"{lock.stem}: {package.name} {package.version} is not pinned by a hash\n")
            bad += 1
        for finding in findings(listed, known):
            line = f"{finding.package.name} {finding.package.version}: {finding.advisory} {finding.summary}"
            sys.stdout.write(f"{lock.stem}: {line.strip()}\n")
            bad += 1
    compared = f"compared with {len(known)} advisories" if given.advisories else "no advisories were given"
    sys.stdout.write(f"{sum(map(len, packages.values()))} packages in {len(packages)} locks, {compared}: {bad} found\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(run())
