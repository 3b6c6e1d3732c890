"""One hash of many files. What was made or measured from them holds while the hash is the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path


def digest(paths: Iterable[Path], root: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> str:
    """Return 16 hexadecimal digits that change with a name below `root`, a content or the order of `paths`."""
    total = hashlib.sha256()
    for path in paths:
        total.update(str(path.relative_to(root)).encode() + b"\0" + read(path) + b"\0")
    return total.hexdigest()[:16]


def python_files(*folders: Path) -> list[Path]:
    """The Python files below the folders, in order."""
    return [path for folder in folders for path in sorted(folder.rglob("*.py"))]
