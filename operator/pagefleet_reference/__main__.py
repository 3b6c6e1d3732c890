"""`python -m pagefleet_reference [--check] [folder]`: writes docs/reference, or compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pagefleet_observability.files import settle
from pagefleet_reference.pages import pages


def main(arguments: list[str]) -> int:
    """0: written, or as it should be; 1: `--check` found pages that differ (they are named)."""
    parser = argparse.ArgumentParser(prog="python -m pagefleet_reference", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/reference"))
    parser.add_argument("--check", action="store_true", help="write nothing; say which pages differ")
    options = parser.parse_args(arguments)
    return settle(options.folder, pages(), "pagefleet_reference", check=options.check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
