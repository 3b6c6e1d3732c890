"""The parts of `make test` that run side by side, and the command of each.

Most tests wait for other programs, so two cores can carry several parts. Some measure latencies: a part that computes without a
pause gives way to the others (`nice`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from support.private import command as in_private_network

NICE = 5  # a third of the weight of a process with nice 0


@dataclass(frozen=True)
class Part:
    """`runs` are the arguments of pytest, one run after the other. `private`: in a network namespace, with folders of its own.
    `root`: needs root; what does not runs as the user who called sudo. `computes`: gives way to the other parts."""

    name: str
    shows: str
    runs: tuple[tuple[str, ...], ...]
    private: bool = True
    root: bool = True
    computes: bool = False

    def commands(self, options: Iterable[str] = ()) -> list[list[str]]:
        """Return the command lines; `options` are further arguments of pytest."""
        pytest = [sys.executable, "-m", "pytest", "--no-header", "-p", "no:cacheprovider", *options]
        lines = [[*pytest, *run] for run in self.runs]
        if self.computes:
            lines = [["nice", "-n", str(NICE), *line] for line in lines]
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
        computes=True,
    ),
)


def chosen(names: Iterable[str]) -> list[Part]:
    """Return the parts of these names, all without any. Raises ValueError for an unknown name."""
    asked, known = set(names), {part.name for part in PARTS}
    if unknown := sorted(asked - known):
        raise ValueError(f"no part is called {', '.join(unknown)}; the parts are {', '.join(sorted(known))}")
    return [part for part in PARTS if not asked or part.name in asked]
