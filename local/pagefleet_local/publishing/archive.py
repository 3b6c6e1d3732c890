"""Makes the archive of `kubectl pagefleet` for this machine's platform: the command, its libraries and a Python of its own, by PyInstaller.

An archive runs where the C library is at least as new as that of the machine which made it. It holds the licence, and the licences of
all libraries in their metadata.
"""

from __future__ import annotations

import gzip
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from pagefleet_local.base.console import stage
from pagefleet_local.fleet.install import CHECKOUT
from pagefleet_local.publishing.krew import PROGRAM, PublishingError, file_name

EXTRA = "cli"
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
ENTRY = "from pagefleet_cli.main import app\n\napp()\n"


def build(folder: Path) -> Path:
    """Write the archive into `folder`, in an environment that has nothing but the command. Raises PublishingError."""
    processor = platform.machine()
    target = folder / file_name(sys.platform, PROCESSORS.get(processor, processor))
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with stage("an environment with the command and PyInstaller"):
            python = _environment(scratch / "environment")
        with stage(f"{PROGRAM}, with a Python of its own"):
            program = _freeze(python, scratch)
        with stage(f"{target}"):
            shutil.copy(CHECKOUT / "LICENSE", program / "LICENSE")
            folder.mkdir(parents=True, exist_ok=True)
            pack(program, target)
    return target


def _environment(folder: Path) -> Path:
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    constraints = str(CHECKOUT / "constraints-dev.txt")
    _run(
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        constraints,
        f"pagefleet[{EXTRA}] @ {CHECKOUT.as_uri()}",
        "pyinstaller",
    )
    return python


def _freeze(python: Path, scratch: Path) -> Path:
    """The folder with the program and all that it needs."""
    (entry := scratch / "entry.py").write_text(ENTRY)
    described = [name for one in sorted(_libraries()) for name in ("--recursive-copy-metadata", one)]
    packages = [word for one in ("pagefleet_cli", "pagefleet_simulator") for word in ("--collect-all", one)]
    _run(
        python, "-m", "PyInstaller", "--noconfirm", "--log-level=ERROR", "--onedir", f"--name={PROGRAM}", *packages, *described,
        "--copy-metadata=pagefleet", f"--distpath={scratch / 'dist'}", f"--workpath={scratch / 'work'}", f"--specpath={scratch}",
        str(entry),
    )  # fmt: skip
    return scratch / "dist" / PROGRAM


def _libraries() -> set[str]:
    """What the extra asks for, by name."""
    asked = [Requirement(text) for text in requires("pagefleet") or ()]
    return {one.name for one in asked if one.marker is None or one.marker.evaluate({"extra": EXTRA})}


def _run(*words: Path | str) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, env=own)
    if done.returncode:
        raise PublishingError(f"{words[2]} ended with {done.returncode}: {done.stderr.strip()[-800:]}")


def pack(folder: Path, target: Path) -> None:
    """A tar.gz of a folder's content as krew unpacks it: files and folders only, so a link becomes the file that it leads to. The same
    content gives the same bytes."""
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT, dereference=True) as written,
    ):
        for path in sorted(folder.rglob("*")):
            written.add(path, str(path.relative_to(folder)), recursive=False, filter=_plain)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The entry without what differs from machine to machine. Raises PublishingError."""
    if ".." in entry.name:
        raise PublishingError(f"krew refuses names with two dots: {entry.name}")
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry
