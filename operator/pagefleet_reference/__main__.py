"""`python -m pagefleet_reference [--check] [folder]`: writes docs/reference, or compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pagefleet_reference.pages import pages


def main(arguments: list[str]) -> int:
    """0: written, or as it should be; 1: `--check` found pages that differ (they are named)."""
    parser = argparse.ArgumentParser(prog="python -m pagefleet_reference", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/reference"))
    parser.add_argument("--check", action="store_true", help="write nothing; say which pages differ")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in pages().items():
        path = options.folder / name
        if options.check:
            if not path.exists() or path.read_text() != text:
                stale.append(str(path))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in stale:
        sys.stderr.write(f"{path} is not what its source makes; run python -m pagefleet_reference\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
