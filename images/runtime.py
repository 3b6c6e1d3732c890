"""Picks what a Python program needs at run time into a root file system of its own: the interpreter, its library, every
shared library that an ELF file asks for, certificates; no shell, no package manager, no compiler. Runs in the build only.

    python3 runtime.py TARGET FOLDER...     FOLDER: where the program's own files are (searched, not copied)
"""

from __future__ import annotations

import compileall
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from py_compile import PycInvalidationMode

# Of the standard library: what only people at a prompt, other programs' installers or tests use.
LEFT_OUT = (
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
    "dist-packages",
    "site-packages",
    "config-*",
)
NEED_WINDOWS_OR_PROMPTS = re.compile(r"^(_tkinter|readline|_curses|_curses_panel|_dbm|_gdbm)\.")
# What programs open without linking to it. Resolver, certificates, time zones of libc, linker's cache.
DATA = (
    "/etc/ssl/certs",
    "/usr/lib/ssl",
    "/usr/share/zoneinfo/UTC",
    "/etc/ld.so.cache",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/usr/lib/os-release",
)
FOLDERS = ("tmp", "proc", "sys", "dev", "run", "var", "home", "etc", "dev/shm")
ACCOUNTS = {
    "etc/passwd": "root:x:0:0:root:/root:/nonexistent\npagefleet:x:65532:65532:pagefleet:/tmp:/nonexistent\n",
    "etc/group": "root:x:0:\npagefleet:x:65532:\n",
}


def main(target: Path, folders: list[Path]) -> None:
    target.mkdir(parents=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        if (source := Path("/", link)).is_symlink():
            (target / link).symlink_to(source.readlink())
            (target / "usr" / link).mkdir(parents=True, exist_ok=True)
    for name in FOLDERS:
        (target / name).mkdir(parents=True, exist_ok=True)
    (target / "tmp").chmod(0o1777)
    for name, text in ACCOUNTS.items():
        (target / name).write_text(text)
    interpreter = Path(sys._base_executable).resolve()
    names = {Path("/usr/bin/env").parent / "python3", Path(sys._base_executable)}
    copy(interpreter, target)
    for name in names:
        if name.is_symlink() and name.resolve() == interpreter:
            place(name, target).symlink_to(interpreter)
    library(target)
    for name in DATA:
        if Path(name).exists():
            copy(Path(name), target)
    own = place(Path(sysconfig.get_path("stdlib")), target)
    elves = [interpreter, *(path for root in (own, *folders) for path in root.rglob("*") if elf(path))]
    # The last: libc opens it when a thread ends.
    for needed in sorted({*linked(elves), *map(str, Path("/usr/lib").glob("*-linux-gnu/libgcc_s.so.1"))}):
        copy(Path(needed), target)


def library(target: Path) -> None:
    """The standard library, compiled."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    copied = place(stdlib, target)
    shutil.copytree(stdlib, copied, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT), dirs_exist_ok=True)
    for module in (copied / "lib-dynload").glob("*.so"):
        if NEED_WINDOWS_OR_PROMPTS.match(module.name):
            module.unlink()
    compileall.compile_dir(copied, quiet=2, stripdir=str(target), invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)


def place(path: Path, target: Path) -> Path:
    """Where `path` goes below `target`; its folders are made."""
    found = target / path.relative_to("/")
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


def copy(path: Path, target: Path) -> None:
    """A file or a folder at its own path, and what a link leads to at that one's."""
    found = place(path, target)
    if path.is_dir() and not path.is_symlink():
        for inner in path.iterdir():
            copy(inner, target)
        return
    if path.is_symlink():
        if not found.is_symlink() and not found.exists():
            found.symlink_to(path.readlink())
        if path.resolve().exists():
            copy(path.resolve(), target)
    elif not found.exists():
        shutil.copy2(path, found)


def elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def linked(files: list[Path]) -> set[str]:
    """Shared libraries of the system that `files` ask for, directly or not, and the dynamic linker."""
    found: set[str] = set()
    for file in files:
        printed = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False).stdout
        found |= set(re.findall(r"(?:=> |^\s+)(/(?:usr/)?(?:local/)?lib\S+) \(0x", printed, flags=re.MULTILINE))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
