"""Puts a changed module in the place of the imported one, inside a process that ends afterwards.

A change inside a function replaces the function's code, so that every name bound to it has the change. A change of the
module's own statements needs a fresh process: `hook` puts it there while the module is imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from mutation.mutants import MODULE_LEVEL, Mutant, mutated, slots

RECORD = "__record_statement__"


def replace_code(mutant: Mutant, source: str) -> None:
    """Give the imported function of a mutant its changed code. Raises LookupError when there is no such function."""
    changed = {code.co_qualname: code for code in _codes(_compiled(mutated(source, mutant), mutant.module))}
    functions = {function.__qualname__: function for function in functions_of(sys.modules[mutant.module])}
    try:
        functions[mutant.function].__code__ = changed[mutant.function]
    except ValueError as error:  # the change leaves out the only use of a closure's variable
        raise LookupError(str(error)) from error


def record_statements(module: str, source: str, reached: set[tuple[str, int]]) -> None:
    """Let every statement of the module's functions add its module and line to `reached` when it runs."""
    tree = ast.parse(source)
    for slot in list(slots(tree)):
        if isinstance(slot.node, ast.stmt) and slot.function != MODULE_LEVEL and slot.index is not None:
            _record(slot.holder, slot.field, slot.node)
    recorded = {code.co_qualname: code for code in _codes(_compiled(ast.fix_missing_locations(tree), module))}
    own = sys.modules[module]
    setattr(own, RECORD, lambda line: reached.add((module, line)))
    for function in functions_of(own):
        function.__code__ = recorded[function.__qualname__]


def functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """The functions that a module defines, methods too; those without a line of its source (of dataclasses) are left out."""
    yield from _functions(vars(module), module)


def source_of(module: str) -> str:
    path = sys.modules[module].__file__
    if path is None:
        raise LookupError(f"{module} has no source")
    return Path(path).read_text()


def _functions(names: dict[str, object], module: ModuleType) -> Iterator[FunctionType]:
    for value in list(names.values()):
        for part in (value, *(getattr(value, name, None) for name in ("__func__", "fget", "func", "__wrapped__"))):
            if isinstance(part, FunctionType) and part.__code__.co_filename == module.__file__:
                yield part
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield from _functions(dict(vars(value)), module)


def _compiled(tree: ast.Module, module: str) -> CodeType:
    return compile(tree, sys.modules[module].__file__ or module, "exec", dont_inherit=True)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _record(holder: ast.AST, field: str, statement: ast.stmt) -> None:
    """Put the recording call before a statement."""
    call = ast.Call(ast.Name(RECORD, ast.Load()), [ast.Constant(statement.lineno)], [])
    body = getattr(holder, field)
    body.insert(body.index(statement), ast.Expr(call))
