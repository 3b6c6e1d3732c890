"""Writes to the terminal: documents as JSON or YAML, rich tables as they are. Decides nothing."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import yaml
from rich.console import Console, RenderableType

from pagefleet_cli.base.options import Output
from pagefleet_cli.base.screen import Screen

PIPE_WIDTH = 1000  # a pipe has no width to fold at
# What kubectl's YAML reads as a number or a truth value, and PyYAML as text: the hash of a revision may be 12e45678 or 08123456.
MISREAD = re.compile(r"(?:[-+]?(?:\.[0-9_]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9_]+)?|0o[0-7_]+|[yYnN])\Z")


class _Dumper(yaml.SafeDumper):
    """Quotes such text."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", MISREAD, list("-+.0123456789yYnN"))


def yaml_of(*documents: object) -> str:
    """The documents as YAML that kubectl reads as they are."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def terminal() -> Console:
    """Standard output. Lines are not folded in a pipe or a file."""
    console = Screen(soft_wrap=True, highlight=False)
    return console if console.is_terminal else Screen(soft_wrap=True, highlight=False, width=PIPE_WIDTH)


def show(output: Output, document: object, tables: Callable[[], Iterable[RenderableType]]) -> None:
    """Write `document` for machines, or `tables` for people."""
    match output:
        case Output.JSON:
            sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        case Output.YAML:
            sys.stdout.write(yaml_of(document))
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
