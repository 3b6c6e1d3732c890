"""Protects what goes into the images: every package pinned by version and hash, for every requirement of an image's
extra, without a trace of where the lock was made; and that the offline audit finds what an advisory names. Row 30."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pagefleet_local.supplychain import Locked, LockError, affected, findings, locked

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {"operator": ["operator"], "gateway": ["gateway"], "engine-cpu": ["engine", "otel"],
         "engine-cuda": ["engine", "otel", "cuda"]}  # fmt: skip


def lock(name: str) -> str:
    return (ROOT / f"images/locks/{name}.txt").read_text()


def test_every_image_has_a_lock() -> None:
    targets = set(
        re.findall(
            r"^FROM \S+ AS (operator|gateway|engine-cpu|engine-cuda)$", (ROOT / "images/Dockerfile").read_text(), re.M
        )
    )
    assert targets == set(LOCKS) == {path.stem for path in (ROOT / "images/locks").iterdir()}


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_by_hash(name: str) -> None:
    packages = locked(lock(name))
    assert len(packages) > 10
    assert [package for package in packages if not package.hashes] == []
    assert len({package.name for package in packages}) == len(packages)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_satisfies_the_project_s_requirements(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [
        *project["dependencies"],
        *(one for extra in LOCKS[name] for one in project["optional-dependencies"][extra]),
    ]
    versions = {package.name: package.version for package in locked(lock(name))}
    for text in requirements:
        requirement = Requirement(text)
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)], prereleases=True), text


def test_the_image_with_transformers_has_all_that_it_asks_for() -> None:
    """But for typer, which only its command line imports."""
    added = locked((ROOT / "images/transformers/requirements.txt").read_text())
    assert [package for package in added if not package.hashes] == []
    versions = {package.name: package.version for package in (*locked(lock("engine-cpu")), *added)}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [Requirement(text) for text in (*(requires("transformers") or []), *extras["transformers"])]
    needed = [one for one in asked if one.marker is None and one.name != "typer"]
    assert len(needed) > 5
    for one in needed:
        assert one.specifier.contains(versions[canonicalize_name(one.name)], prereleases=True), str(one)


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_does_not_say_where_it_was_made(name: str) -> None:
    for line in lock(name).splitlines():
        assert re.fullmatch(
            r"[A-Za-z0-9._-]+(\[[a-z0-9,-]+\])?==\S+( ; [^/]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line
        ), line


@pytest.mark.parametrize(
    "line", ["aiohttp>=3", "aiohttp", "-e .", "git+https://example.org/x", "--index-url https://example.org"]
)
def test_what_pins_nothing_is_refused(line: str) -> None:
    with pytest.raises(LockError, match="not a pinned package"):
        locked(f"{line}\n")


def ranged(*events: dict[str, str]) -> dict[str, Any]:
    return {
        "package": {"ecosystem": "PyPI", "name": "Some.Package"},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
    }


@pytest.mark.parametrize(
    ("entry", "hit"),
    [
        (ranged({"introduced": "0"}, {"fixed": "1.5"}), False),
        (ranged({"introduced": "0"}, {"fixed": "1.5.1"}), True),
        (ranged({"introduced": "0"}), True),
        (ranged({"introduced": "1.5"}, {"last_affected": "1.5"}), True),
        (ranged({"introduced": "1.0"}, {"last_affected": "1.4"}), False),
        (ranged({"introduced": "1.6"}), False),
        (ranged({"introduced": "0"}, {"fixed": "1.2"}, {"introduced": "1.4"}, {"fixed": "1.10"}), True),
        ({"versions": ["1.4", "1.5.0"]}, True),
        ({"versions": ["1.4"]}, False),
        ({"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]}, False),
    ],
)
def test_ranges_are_read_as_osv_means_them(entry: dict[str, Any], hit: bool) -> None:
    assert affected(entry, "1.5+cpu") is hit


def test_names_are_compared_as_the_index_compares_them() -> None:
    advisory = {"id": "X-1", "affected": [ranged({"introduced": "0"})]}
    assert [finding.advisory for finding in findings([Locked("some-package", "1", 1)], [advisory])] == ["X-1"]
    elsewhere = {
        "id": "X-2",
        "affected": [{**ranged({"introduced": "0"}), "package": {"ecosystem": "npm", "name": "some-package"}}],
    }
    assert findings([Locked("some-package", "1", 1)], [elsewhere]) == []


def test_the_audit_of_the_locks_finds_what_an_advisory_names(tmp_path: Path) -> None:
    version = next(package.version for package in locked(lock("gateway")) if package.name == "aiohttp")
    advisory = {
        "id": "TEST-1",
        "summary": "made up",
        "affected": [{"package": {"ecosystem": "PyPI", "name": "aiohttp"}, "versions": [version]}],
    }
    withdrawn = {**advisory, "id": "TEST-2", "withdrawn": "2026-01-01T00:00:00Z"}
    (tmp_path / "a.json").write_text(json.dumps(advisory))
    (tmp_path / "b.json").write_text(json.dumps([withdrawn]))
    command = [sys.executable, "-m", "pagefleet_local.supplychain"]
    locks = [str(ROOT / f"images/locks/{name}.txt") for name in LOCKS]
    audit = subprocess.run(
        [*command, "--advisories", str(tmp_path), *locks], capture_output=True, text=True, check=False
    )
    assert audit.returncode == 1, audit.stderr
    assert f"gateway: aiohttp {version}: TEST-1 made up" in audit.stdout
    assert "TEST-2" not in audit.stdout
    clean = subprocess.run([*command, *locks], capture_output=True, text=True, check=False)
    assert (clean.returncode, clean.stderr) == (0, "")
