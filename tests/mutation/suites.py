"""The packages whose mutants are tried, the tests that should notice, and what identifies both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pagefleet_local.base import sources
from pagefleet_local.base.sources import python_files

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
        paths = python_files(ROOT / self.folder)
        return {_dotted(self.package, path.relative_to(ROOT / self.folder)): path for path in paths}

    @property
    def sources(self) -> str:
        """The hash of the modules and of what their tests share."""
        return digest((*self.modules().values(), *python_files(SUPPORT)))


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
    return sources.digest(paths, ROOT, _content)


@cache
def _content(path: Path) -> bytes:
    return path.read_bytes()


def _dotted(package: str, path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))
