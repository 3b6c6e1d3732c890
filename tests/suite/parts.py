"""The parts of `make check` and `make test` that run side by side, and the command of each.

Most tests wait for other programs, so two cores can carry several parts. Some measure latencies: a part that computes without a
pause gives way to the others (`nice`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from support.private import command as in_private_network

NICE = 5  # a third of the weight of a process with nice 0
NICEST = 19  # computes only while nothing else does


@dataclass(frozen=True)
class Part:
    """`runs` are the arguments of pytest, one run after the other, or without `tests` programs of the environment. `private`: in a network namespace, with folders of its own.
    `root`: needs root; what does not runs as the user who called sudo. `nice`: how far it gives way to the other parts."""

    name: str
    shows: str
    runs: tuple[tuple[str, ...], ...]
    private: bool = True
    root: bool = True
    nice: int = 0
    tests: bool = True

    def commands(self, options: Iterable[str] = ()) -> list[list[str]]:
        """Return the command lines; `options` are further arguments of pytest."""
        if self.tests:
            pytest = [sys.executable, "-m", "pytest", "--no-header", "-p", "no:cacheprovider", *options]
            lines = [[*pytest, *run] for run in self.runs]
        else:
            lines = [[str(Path(sys.executable).parent / program), *words] for program, *words in self.runs]
        if self.nice:
            lines = [["nice", "-n", str(self.nice), *line] for line in lines]
        return [in_private_network(self.name, line) for line in lines] if self.private else lines


PARTS = (
    Part(
        "node", "the fleet and the demo's scenes on a real node", (("-v", "-m", "e2e", "tests/cluster"),), private=False
    ),
    Part("plane", "the operator on a real control plane", (("-v", "-m", "not e2e", "tests/cluster"),)),
    Part("faults", "faults on a control plane; installs on another", (("-v", "tests/faults", "tests/install"),)),
    Part(
        "engine",
        "kernels and device runner (Triton's interpreter), the engine (parity with transformers)",
        (("-q", "tests/kernels"), ("-q", "tests/device"), ("-q", "tests/engine")),
        private=False,
        root=False,
        nice=NICE,
    ),
    # The first run builds that server, for minutes (tests/crd/conftest.py): -s shows how far it is. It needs the network for that.
    Part(
        "crd",
        "the CRD on Kubernetes' current CRD server",
        (("-q", "-s", "tests/crd"),),
        private=False,
        root=False,
    ),
    Part(
        "static", "types and imports", (("mypy",), ("lint-imports",)), private=False, root=False, nice=NICE, tests=False
    ),
    Part(
        "unit",
        "pure functions and virtual time",
        (("-q", "-n", "auto", "tests/unit", "tests/property"),),
        private=False,
        root=False,
        nice=NICEST,
    ),
    # Its tests mostly wait: more processes than two cores.
    Part(
        "contract",
        "gateways, Envoy, engines and Prometheus as real processes",
        (("-q", "-n", "4", "--dist", "loadfile", "tests/contract"),),
        private=False,
        root=False,
    ),
)


def chosen(names: Iterable[str]) -> list[Part]:
    """Return the parts of these names, all without any. Raises ValueError for an unknown name."""
    asked, known = set(names), {part.name for part in PARTS}
    if unknown := sorted(asked - known):
        raise ValueError(f"no part is called {', '.join(unknown)}; the parts are {', '.join(sorted(known))}")
    return [part for part in PARTS if not asked or part.name in asked]
