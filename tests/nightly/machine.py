"""Reads what the report must name: the commit, the hash of the sources, and the machine; and finds what the machine lacks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from nightly.jobs import Need

from pagefleet_local.base import paths
from pagefleet_local.base.preflight import Refused, check
from pagefleet_local.base.sources import digest
from pagefleet_local.kind import plan as kind

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
VLLM_MEMORY, VLLM_DISK = 8 * GIB, 15 * GIB


@dataclass(frozen=True)
class Checkout:
    """`sources` is a hash of every file that git lists or would list."""

    commit: str
    changed: bool
    sources: str

    @property
    def key(self) -> str:
        return f"{self.commit[:12]}-{self.sources}"


def checkout(root: Path = ROOT) -> Checkout:
    """Raises OSError or CalledProcessError where there is no git or no repository."""
    names = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    files = sorted(root / name for name in set(names) if name and (root / name).is_file())
    return Checkout(
        _git(root, "rev-parse", "HEAD").strip(), bool(_git(root, "status", "--porcelain").strip()), digest(files, root)
    )


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def machine_class(proc: Path = Path("/proc")) -> str:
    """Cores, memory and the model of the CPU in words."""
    model = re.search(r"^model name\s*:\s*(.+)$", (proc / "cpuinfo").read_text(), re.MULTILINE)
    return f"{os.cpu_count()} cores, {_memory(proc) / GIB:.0f} GiB of memory, {model[1] if model else 'CPU without a name'}"


def _memory(proc: Path = Path("/proc")) -> int:
    total = re.search(r"^MemTotal:\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    return int(total[1]) * 1024 if total else 0


def absent(needs: Iterable[Need]) -> dict[Need, str]:
    """Those of the needs that this machine does not meet, each with the reason."""
    return {need: reason for need in needs if (reason := REASONS[need]())}


def _no_root() -> str:
    if os.geteuid() == 0 or _succeeds("sudo", "-n", "true"):
        return ""
    return "this user is not root, and sudo asks for a password"


def _no_node() -> str:
    if os.geteuid() != 0:
        return ""  # what only root can find out, the job itself refuses
    try:
        check(paths.layout(), node=True, running=True)
    except Refused as refused:
        return str(refused)
    return ""


def _no_docker() -> str:
    programs = {name: shutil.which(name) is not None for name in ("docker", "kind")}
    daemon = programs["docker"] and _succeeds("docker", "info")
    return "; ".join(kind.lacking(programs, daemon=daemon, version=sys.version_info[:2], alerts=True))


def _no_gpu() -> str:
    """By the interpreter of `make test-gpu`: torch in .venv is the CPU build."""
    python = os.environ.get("PYTHON", "python3")
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return (
        "" if _succeeds(python, "-c", probe) else f"torch of {python} finds no GPU (PYTHON names another interpreter)"
    )


def _no_room_for_vllm() -> str:
    folder = paths.cache()
    while not folder.exists():
        folder = folder.parent
    memory, disk = _memory(), shutil.disk_usage(folder).free
    lacking = []
    if memory < VLLM_MEMORY:
        lacking.append(f"{memory / GIB:.0f} of {VLLM_MEMORY / GIB:.0f} GiB of memory")
    if disk < VLLM_DISK:
        lacking.append(f"{disk / GIB:.0f} of {VLLM_DISK / GIB:.0f} GiB free in {folder}")
    return "; ".join(lacking)


def _no_history() -> str:
    shallow = _git(ROOT, "rev-parse", "--is-shallow-repository").strip() == "true"
    return (
        "this clone is shallow, and the old operator comes out of git's history (git fetch --unshallow)"
        if shallow
        else ""
    )


REASONS: dict[Need, Callable[[], str]] = {
    Need.ROOT: _no_root,
    Need.NODE: _no_node,
    Need.DOCKER: _no_docker,
    Need.GPU: _no_gpu,
    Need.VLLM: _no_room_for_vllm,
    Need.HISTORY: _no_history,
}


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
