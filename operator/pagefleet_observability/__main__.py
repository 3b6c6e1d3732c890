"""`python -m pagefleet_observability [--check] [--runbooks URL] [folder]`: writes rules and dashboards, or compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pagefleet_observability.files import files
from pagefleet_observability.rule import RUNBOOKS


def main(arguments: list[str]) -> int:
    """0: written, or as it should be; 1: `--check` found files that differ (they are named)."""
    parser = argparse.ArgumentParser(prog="python -m pagefleet_observability", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("manifests/monitoring"))
    parser.add_argument("--runbooks", default=RUNBOOKS, help="where docs/runbooks.md is to be read")
    parser.add_argument("--check", action="store_true", help="write nothing; say which files differ")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in files(options.runbooks).items():
        path = options.folder / name
        if options.check:
            if not path.exists() or path.read_text() != text:
                stale.append(str(path))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in stale:
        sys.stderr.write(f"{path} is not what its source makes; run python -m pagefleet_observability\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
