"""The packages whose mutants are tried, the tests that should notice, and what identifies both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests/support"
PROPERTY = "tests/property"
# Fewer histories than `make test` plays: each mutant runs them again.
ENVIRONMENT = {"PAGEFLEET_ROLLOUT_TRACES": "20"}


@dataclass(frozen=True)
class Suite:
    """`folder` has the modules of `package`; `tests` are files and folders of tests."""

    folder: str
    package: str
    tests: tuple[str, ...]

    def modules(self) -> dict[str, Path]:
        paths = sorted((ROOT / self.folder).rglob("*.py"))
        return {_dotted(self.package, path.relative_to(ROOT / self.folder)): path for path in paths}

    @property
    def sources(self) -> str:
        """The hash of the modules and of what their tests share."""
        return digest((*self.modules().values(), *sorted(SUPPORT.rglob("*.py"))))


SUITES = {
    "rollout": Suite(
        "operator/pagefleet_operator/domain/rollout",
        "pagefleet_operator.domain.rollout",
        ("tests/unit/operator", f"{PROPERTY}/test_operator_rollout.py"),
    ),
    "analysis": Suite(
        "operator/pagefleet_operator/domain/analysis",
        "pagefleet_operator.domain.analysis",
        (
            "tests/unit/operator",
            *(
                str(path.relative_to(ROOT))
                for pattern in ("test_guard*.py", "test_operator_[aeg]*.py", "test_operator_paired.py")
                for path in sorted((ROOT / PROPERTY).glob(pattern))
                if path.name != "test_operator_autoscale.py"
            ),
            f"{PROPERTY}/test_operator_rollout.py",
        ),
    ),
}


def digest(paths: Iterable[Path]) -> str:
    """One hash of the files' names and contents."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(f"{path.relative_to(ROOT)}\n".encode())
        whole.update(_content(path))
    return whole.hexdigest()[:16]


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


def _dotted(package: str, path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))
