"""What krew does with a plugin, restated from its sources (0.5: internal/index/validation, internal/download, internal/installation and the check
of its index, cmd/validate-krew-manifest): the rules of a manifest, how an archive is unpacked, where the program is linked."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

API = "krew.googlecontainertools.github.com/v1alpha2"
KNOWN = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"version", "shortDescription", "description", "caveats", "homepage", "platforms"},
    "platform": {"uri", "sha256", "selector", "files", "bin"},
}
NAME, SHA256 = re.compile(r"[\w-]+"), re.compile(r"[a-f0-9]{64}")
SEMVER = re.compile(r"v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
PLATFORMS = {
    ("windows", "386"), ("windows", "amd64"), ("windows", "arm64"), ("linux", "386"), ("linux", "amd64"), ("linux", "arm"),
    ("linux", "arm64"), ("linux", "ppc64le"), ("darwin", "386"), ("darwin", "amd64"), ("darwin", "arm64"),
}  # fmt: skip
LICENSES = {"license", "license.txt", "license.md", "licenses", "licenses.txt", "licenses.md", "copying", "copying.txt"}


def faults(name: str, manifest: dict[str, Any]) -> list[str]:
    """Why krew, or the check of its index, refuses the manifest of the file `name`.yaml."""
    spec, found = manifest.get("spec") or {}, []
    found += [f"unknown field {one}" for one in manifest.keys() - KNOWN[""]]
    found += [f"unknown field spec.{one}" for one in spec.keys() - KNOWN["spec"]]
    if (manifest.get("apiVersion"), manifest.get("kind")) != (API, "Plugin"):
        found.append("another kind")
    if not NAME.fullmatch(name) or (manifest.get("metadata") or {}).get("name") != name:
        found.append("the file has another name")
    if not (short := spec.get("shortDescription", "")) or "\n" in short:
        found.append("shortDescription is no line")
    if not SEMVER.fullmatch(spec.get("version", "")):
        found.append("version is none of semver.org with v before it")
    platforms = spec.get("platforms") or []
    for one in platforms:
        found += [f"unknown field platforms[].{name}" for name in one.keys() - KNOWN["platform"]]
        if not one.get("uri") or not SHA256.fullmatch(one.get("sha256", "")) or not one.get("bin"):
            found.append("a platform has no uri, sha256 or bin")
        if "files" in one and not (one["files"] and all(file.get("from") and file.get("to") for file in one["files"])):
            found.append("files is empty or has no from and to")
    chosen = Counter(
        tuple(one["selector"]["matchLabels"].get(key) for key in ("os", "arch"))
        for one in platforms
        if one.get("selector")
    )
    if not platforms or sum(chosen.values()) != len(platforms) or not set(chosen) <= PLATFORMS:
        found.append("a platform is not one of krew's")
    return found + [f"two for {one}" for one, count in chosen.items() if count > 1]


def install(root: Path, platform: dict[str, Any], archive: Path) -> Path:
    """Install a platform's archive below `root`. Returns the link that is on PATH. Raises ValueError for what krew refuses."""
    if hashlib.sha256(archive.read_bytes()).hexdigest() != platform["sha256"]:
        raise ValueError("the checksum is another one")
    store = root / "store/pagefleet"
    with tarfile.open(archive, "r:gz") as packed:
        for entry in packed:
            if ".." in entry.name or entry.name.startswith(("/", "\\")):
                raise ValueError(f"suspicious entry {entry.name}")
            path = store / entry.name
            if entry.isdir():
                path.mkdir(mode=entry.mode, parents=True, exist_ok=True)
            elif entry.type == tarfile.REGTYPE and (content := packed.extractfile(entry)) is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
                path.chmod(entry.mode)
            else:
                raise ValueError(f"{entry.name} is neither file nor folder")
    if not any(path.name.lower() in LICENSES for path in store.rglob("*")):
        raise ValueError("no licence")
    program = store / platform["bin"]
    if not program.is_file():
        raise ValueError("no program")
    link = root / "bin/kubectl-pagefleet"
    link.parent.mkdir(parents=True)
    link.symlink_to(program)
    return link
