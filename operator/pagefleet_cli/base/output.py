"""Writes to the terminal: documents as JSON or YAML, rich tables as they are. Decides nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import yaml
from rich.console import Console, RenderableType

from pagefleet_cli.base.options import Output

PIPE_WIDTH = 1000  # a pipe has no width to fold at


def terminal() -> Console:
    """Standard output. Lines are not folded in a pipe or a file."""
    console = Console(soft_wrap=True, highlight=False)
    return console if console.is_terminal else Console(soft_wrap=True, highlight=False, width=PIPE_WIDTH)


def show(output: Output, document: object, tables: Callable[[], Iterable[RenderableType]]) -> None:
    """Write `document` for machines, or `tables` for people."""
    match output:
        case Output.JSON:
            sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        case Output.YAML:
            sys.stdout.write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        case Output.TABLE | Output.WIDE:
            console = terminal()
            for number, table in enumerate(tables()):
                if number:
                    console.print()
                console.print(table)


def plain(value: Any) -> Any:
    """A copy of parsed JSON without the fields that only the API server needs (managedFields)."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key != "managedFields"}
    return [plain(item) for item in value] if isinstance(value, list) else value
