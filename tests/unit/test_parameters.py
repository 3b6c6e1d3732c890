"""Protects readable calls: no function of the operator or the gateway takes more than six parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("operator/pagefleet_operator", "gateway/pagefleet_gateway")
MAX_PARAMETERS = 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(function: Function) -> int:
    """Count all parameters, keyword-only and variadic ones too, without `self` and `cls`."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    variadic = (arguments.vararg, arguments.kwarg)
    return sum(one.arg not in ("self", "cls") for one in named) + sum(one is not None for one in variadic)


def functions(source: str) -> Iterator[Function]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, Function))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_has_more_than_six_parameters(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    long = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name} has {parameters(function)}"
        for path in files
        for function in functions(path.read_text())
        if parameters(function) > MAX_PARAMETERS
    ]
    assert not long, "group what belongs together in a dataclass: " + ", ".join(long)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def f(a, b, /, c, *, d, e): ...", 5),
        ("async def f(self, a, *rest, b=1, **more): ...", 4),
        ("def f(): ...", 0),
    ],
)
def test_every_kind_of_parameter_counts(source: str, count: int) -> None:
    (function,) = functions(source)
    assert parameters(function) == count
