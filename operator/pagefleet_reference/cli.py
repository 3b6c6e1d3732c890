"""docs/reference/cli.md: every command, argument and option of `pagefleet`, from the command line's own declarations."""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import typer

from pagefleet_cli.main import app
from pagefleet_reference.markdown import cell, code, table

KINDS = {bool: "-", str: "text", int: "integer", float: "number"}
INTRODUCTION = """\
# Commands and options

`pagefleet` and `kubectl pagefleet` are the same command. What each is for, with examples: [the command line](../cli.md).
Every command has `--help`. Exit codes: 0 done; 1 refused, failed, or rolled back; 2 wrong usage; 3 not within `--timeout`.
"""


def page() -> str:
    return "\n".join([INTRODUCTION, *_commands("pagefleet", app)])


def _commands(name: str, group: typer.Typer) -> Iterator[str]:
    """One section for each command, those of a group after its own."""
    for command in group.registered_commands:
        if command.callback is not None and not command.hidden:
            own = command.name or command.callback.__name__.strip("_").replace("_", "-")
            text = command.help or inspect.getdoc(command.callback) or ""
            yield _command(f"{name} {own}", command.callback, text)
    for below in group.registered_groups:
        if below.typer_instance is not None:
            yield from _commands(f"{name} {below.name}", below.typer_instance)


def _command(name: str, callback: Callable[..., Any], text: str) -> str:
    hints = typing.get_type_hints(callback, include_extras=True)
    found = [(one, *typing.get_args(hints[one.name])) for one in inspect.signature(callback).parameters.values()]
    arguments = [_usage(one) for one, _, info in found if info.__class__.__name__ == "ArgumentInfo"]
    rows = [_row(one, kind, info) for one, kind, info in found if not info.hidden]
    head = f"## {name}\n\n`{' '.join([name, '[OPTIONS]', *arguments])}`\n\n{_prose(text)}\n"
    return head + ("\n" + table(("argument or option", "takes", "default", "what it is"), rows) if rows else "")


def _prose(text: str) -> str:
    """Each paragraph on one line."""
    return "\n\n".join(cell(part) for part in text.split("\n\n"))


def _usage(parameter: inspect.Parameter) -> str:
    name = parameter.name.upper()
    return name if parameter.default is inspect.Parameter.empty else f"[{name}]"


def _row(parameter: inspect.Parameter, kind: Any, info: Any) -> tuple[str, ...]:
    if info.__class__.__name__ == "ArgumentInfo":
        names = [parameter.name.upper()]
    else:
        names = _names(parameter.name, kind, info)
    return ", ".join(map(code, names)), _takes(kind), _default(parameter.default), cell(info.help or "")


def _names(name: str, kind: Any, info: Any) -> list[str]:
    """Of an option; in Annotated typer keeps the first declared name as the default."""
    given = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str) and one.startswith("-")]
    if given:
        return given
    shown = name.replace("_", "-")
    return [f"--{shown}", f"--no-{shown}"] if kind is bool else [f"--{shown}"]


def _takes(kind: Any) -> str:
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
    one = next(kind for kind in kinds if kind is not type(None))
    if isinstance(one, type) and issubclass(one, enum.Enum):
        return ", ".join(code(str(member.value)) for member in one)
    return KINDS.get(one) or str(getattr(one, "__name__", one)).lower()


def _default(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if default in (None, "", (), []) or default is False:
        return "-"
    return code(str(default.value if isinstance(default, enum.Enum) else default))
