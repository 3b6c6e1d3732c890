"""Packages of another suite of Debian than the machine's own: from the archive that the machine's apt is set up for, with lists of
their own, unpacked into a folder. The machine's apt, its lists and its packages stay as they are."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.assets.debian import AssetError, apt
from pagefleet_local.base.console import Report

SOURCES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))
ONE_LINE = re.compile(r"^deb\s+(\[[^]]*\]\s+)?(\S+)\s+([a-z][a-z0-9]*)\s")
OTHER_ARCHIVES = ("security", "backports", "updates", "ports")
AT_ONCE = 12  # packages of one download: progress is shown after each
# Without a network the reason is there after seconds.
PATIENCE = ("Acquire::http::Timeout=20", "Acquire::https::Timeout=20", "Acquire::Retries=1")


def rewritten(text: str, suite: str) -> str:
    """Return the entries of an apt source for Debian's main archive, asking for `suite` instead; "" where it has none."""
    kept = []
    for line in text.splitlines():
        found = ONE_LINE.match(line)
        if found and "debian" in found[2] and not any(word in found[2] for word in OTHER_ARCHIVES):
            kept.append(f"deb {found[1] or ''}{found[2]} {suite} main\n")
            break
    for stanza in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", stanza, re.MULTILINE))
        uris, off = fields.get("URIs", ""), fields.get("Enabled", "yes").lower() in ("no", "false")
        if "debian" in uris and not off and not any(word in uris for word in OTHER_ARCHIVES):
            signed = fields.get("Signed-By", "")
            key = f"Signed-By: {signed}\n" if signed else ""
            kept.append(f"Types: deb\nURIs: {uris}\nSuites: {suite}\nComponents: main\n{key}")
            break
    return "\n".join(kept)


@dataclass(frozen=True)
class Suite:
    """The packages of `name` (a suite such as sid), with apt's lists and the packages in `folder`. What was downloaded there
    before is not downloaded again."""

    name: str
    folder: Path

    @property
    def packages(self) -> Path:
        return self.folder / "packages"

    def update(self) -> None:
        """Fetch the suite's lists. Raises AssetError, also where apt is set up for no archive of Debian."""
        for name in ("lists/partial", "sources", "cache/archives/partial", "packages"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "status").write_text("")
        files = [SOURCES[0], *sorted(SOURCES[1].glob("*"))]
        read = [path for path in files if path.is_file() and path.suffix in (".list", ".sources")]
        for path in read:
            if text := rewritten(path.read_text(), self.name):
                (self.folder / f"sources/debian{path.suffix}").write_text(text)
                break
        else:
            raise AssetError("apt is set up for no archive of Debian (/etc/apt/sources.list, /etc/apt/sources.list.d)")
        # apt-get update succeeds with a warning where it has reached nothing.
        apt("update", "--error-on=any", options=self._options())

    def known(self, *packages: str) -> dict[str, dict[str, str]]:
        """Return the fields (Version, Depends) of the newest version of each package that the suite has."""
        command = ["apt-cache", *[f"-o{option}" for option in self._options()], "show", "--no-all-versions", *packages]
        shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        entries = [dict(re.findall(r"^([A-Za-z-]+): (.*)$", entry, re.MULTILINE)) for entry in shown.split("\n\n")]
        return {entry["Package"]: entry for entry in entries if "Package" in entry}

    def unpack(self, packages: Sequence[str], root: Path, report: Report) -> None:
        """Download what is missing of `packages`, and unpack them all together into `root`, which is made anew."""
        for begin in range(0, len(packages), AT_ONCE):
            report(f"{begin} of {len(packages)} packages")
            apt("download", *packages[begin : begin + AT_ONCE], cwd=self.packages, options=self._options())
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for package, fields in self.known(*packages).items():
            # The version's colon is written %3a in a file's name.
            (file,) = self.packages.glob(f"{package}_{fields['Version'].replace(':', '%3a')}_*.deb")
            subprocess.run(["dpkg-deb", "-x", str(file), str(root)], check=True)
        report(f"{len(packages)} packages unpacked")

    def _options(self) -> tuple[str, ...]:
        return (
            "Dir::Etc::sourcelist=/dev/null",
            f"Dir::Etc::sourceparts={self.folder / 'sources'}",
            "Dir::Etc::preferences=/dev/null",
            "Dir::Etc::preferencesparts=/dev/null",
            f"Dir::State={self.folder}",
            f"Dir::State::lists={self.folder / 'lists'}",
            f"Dir::State::status={self.folder / 'status'}",
            f"Dir::Cache={self.folder / 'cache'}",
            # apt's own sandbox user cannot write below a root-owned folder; the download is verified all the same.
            "APT::Sandbox::User=root",
            *PATIENCE,
        )
