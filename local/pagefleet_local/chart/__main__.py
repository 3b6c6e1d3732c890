"""`python -m pagefleet_local.chart [--check]`: writes charts/pagefleet, or lists the files that differ."""

from __future__ import annotations

import sys
from pathlib import Path

from pagefleet_local.base.console import CONSOLE
from pagefleet_local.chart.whole import CHECKOUT, chart

CHART = CHECKOUT / "charts/pagefleet"


def different(folder: Path, expected: dict[str, str]) -> list[str]:
    """Paths that are missing, superfluous, or have a different text."""
    there = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    return sorted(path for path in {*there, *expected} if there.get(path) != expected.get(path))


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        CONSOLE.print(f"unknown arguments {arguments}: only --check is allowed", markup=False)
        return 2
    expected = chart()
    for path in (differences := different(CHART, expected)):
        if arguments:
            CONSOLE.print(f"charts/pagefleet/{path} is not what `python -m pagefleet_local.chart` writes")
        elif path in expected:
            (CHART / path).parent.mkdir(parents=True, exist_ok=True)
            (CHART / path).write_text(expected[path])
        else:
            (CHART / path).unlink()
    return int(bool(arguments and differences))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
