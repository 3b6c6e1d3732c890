"""`python -m pagefleet_observability [--check] [--runbooks URL] [folder]`: writes rules and dashboards, or compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pagefleet_observability.files import files, settle
from pagefleet_observability.rules.rule import RUNBOOKS


def main(arguments: list[str]) -> int:
    """0: written, or as it should be; 1: `--check` found files that differ (they are named)."""
    parser = argparse.ArgumentParser(prog="python -m pagefleet_observability", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("manifests/monitoring"))
    parser.add_argument("--runbooks", default=RUNBOOKS, help="where docs/runbooks.md is to be read")
    parser.add_argument("--check", action="store_true", help="write nothing; say which files differ")
    options = parser.parse_args(arguments)
    return settle(options.folder, files(options.runbooks), "pagefleet_observability", check=options.check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
