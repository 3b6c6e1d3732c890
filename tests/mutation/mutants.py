"""Makes the mutants of a module: the same program with one small change that a test should notice.

The changes are those of DeMillo, Lipton and Sayward (Hints on test data selection, 1978) that fit Python: comparisons and
their boundaries, arithmetic, constants, conditions and their operands, rounding, arguments left out, statements left out.
Text of messages (a string with a blank in it, the literal parts of an f-string) is not changed.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
MODULE_LEVEL = "<module>"
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
CALLS = {"ceil": "floor", "floor": "ceil", "min": "max", "max": "min", "any": "all", "all": "any"}
TYPE_FIELDS = frozenset({"annotation", "returns", "type_params"})


@dataclass(frozen=True)
class Mutant:
    """One change. `place` counts the nodes of the module's tree, `choice` the changes of that node; `before` and `after` are
    the statement, or the head of a compound one. `copy` counts equal changes in one function."""

    module: str
    function: str
    line: int
    statement: int
    place: int
    choice: int
    before: str
    after: str
    copy: int = 0

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What the change is, wherever it stands: this survives edits elsewhere in the module."""
        return self.module, self.function, self.before, self.after

    @property
    def is_in_function(self) -> bool:
        return self.function != MODULE_LEVEL


@dataclass(frozen=True)
class Slot:
    """A node and where it hangs: `holder.field`, or `holder.field[index]`. `statement` is the line of its statement."""

    node: ast.AST
    holder: ast.AST
    field: str
    index: int | None
    function: str
    statement: ast.stmt | None

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.holder, self.field, node)
        else:
            getattr(self.holder, self.field)[self.index] = node


def slots(tree: ast.Module) -> Iterator[Slot]:
    """Yield every node of a module that may change, in a fixed order; types and docstrings are left out."""
    yield from _below(tree, MODULE_LEVEL, "", None)


def mutants(module: str, source: str) -> list[Mutant]:
    tree, made = ast.parse(source), []
    counts: dict[tuple[str, ...], int] = {}
    for place, slot in enumerate(slots(tree)):
        for choice, node in enumerate(_changes(slot)):
            statement = slot.statement
            if statement is None:
                continue
            before = _head(statement)
            slot.put(node)
            changed = node if slot.node is statement else statement
            after = _head(changed) if isinstance(changed, ast.stmt) else ast.unparse(changed)
            slot.put(slot.node)
            if before == after:
                continue
            key = (slot.function, before, after)
            counts[key] = counts.get(key, -1) + 1
            line = getattr(slot.node, "lineno", statement.lineno)
            made.append(
                Mutant(module, slot.function, line, statement.lineno, place, choice, before, after, counts[key])
            )
    return made


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """Return the module's tree with the one change."""
    tree = ast.parse(source)
    slot = next(slot for place, slot in enumerate(slots(tree)) if place == mutant.place)
    slot.put(_changes(slot)[mutant.choice])
    return ast.fix_missing_locations(tree)


def _below(holder: ast.AST, function: str, path: str, statement: ast.stmt | None) -> Iterator[Slot]:
    for field, value in ast.iter_fields(holder):
        if field in TYPE_FIELDS:
            continue
        several = isinstance(value, list)
        for index, node in enumerate(value if several else [value]):
            if not isinstance(node, ast.AST) or _is_docstring(holder, field, index, node):
                continue
            inner, below, name = node if isinstance(node, ast.stmt) else statement, path, function
            # Defaults and decorators run with the module; the body runs with the function, nested ones with the outer.
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                below = f"{path}.{node.name}".lstrip(".")
            if isinstance(holder, FUNCTIONS) and field == "body" and function == MODULE_LEVEL:
                name = path
            yield Slot(node, holder, field, index if several else None, name, inner)
            if isinstance(node, ast.FormattedValue):
                yield from _below_formatted(node, name, below, inner)
            else:
                yield from _below(node, name, below, inner)


def _below_formatted(node: ast.FormattedValue, function: str, path: str, statement: ast.stmt | None) -> Iterator[Slot]:
    """The value of an f-string's field, without its format."""
    yield Slot(node.value, node, "value", None, function, statement)
    yield from _below(node.value, function, path, statement)


def _is_docstring(holder: ast.AST, field: str, index: int, node: ast.AST) -> bool:
    constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return constant and field == "body" and index == 0 and isinstance(holder, (ast.Module, ast.ClassDef, *FUNCTIONS))


def _head(statement: ast.stmt) -> str:
    """The statement; of one with a body only what stands before it."""
    if not hasattr(statement, "body") and not hasattr(statement, "cases"):
        return ast.unparse(statement)
    head = copy.copy(statement)
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        if hasattr(head, field):
            setattr(head, field, [])
    return ast.unparse(head).splitlines()[-1]


def _changes(slot: Slot) -> list[ast.AST]:
    """The changed copies of a node, in a fixed order."""
    node, changes = slot.node, list[ast.AST]()
    is_condition = slot.field in ("test", "ifs") or (slot.field == "guard")
    if is_condition:
        changes += [ast.Constant(True), ast.Constant(False)]
        if isinstance(slot.holder, ast.While):
            changes.pop(0)
    match node:
        case ast.Compare(ops=ops):
            for index, op in enumerate(ops):
                if isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) or not is_condition:
                    changes.append(_with(node, "ops", index, COMPARISONS[type(op)]()))
        case ast.BoolOp(op=op, values=values):
            swapped = copy.deepcopy(node)
            swapped.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            changes.append(swapped)
            for index in range(len(values)):
                others = [copy.deepcopy(value) for place, value in enumerate(values) if place != index]
                changes.append(others[0] if len(others) == 1 else ast.BoolOp(copy.deepcopy(op), others))
        case ast.BinOp(op=op) if type(op) in ARITHMETIC and not _is_text(node):
            swapped_operator = copy.deepcopy(node)
            swapped_operator.op = ARITHMETIC[type(op)]()
            changes.append(swapped_operator)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand) if not is_condition:
            changes.append(copy.deepcopy(operand))
        case ast.AugAssign(op=op):
            if type(op) in ARITHMETIC:
                swapped_assign = copy.deepcopy(node)
                swapped_assign.op = ARITHMETIC[type(op)]()
                changes.append(swapped_assign)
            changes.append(ast.Pass())
        case ast.Constant(value=value) if not isinstance(slot.holder, ast.JoinedStr):
            changes += [ast.Constant(other) for other in _other_constants(value)]
        case ast.Call(func=function, keywords=keywords):
            changes += _call_changes(node, function, keywords)
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise() | ast.Continue() | ast.Break():
            changes.append(ast.Pass())
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            changes.append(ast.Pass())
    return changes


def _with(node: ast.Compare, field: str, index: int, value: ast.cmpop) -> ast.Compare:
    changed = copy.deepcopy(node)
    getattr(changed, field)[index] = value
    return changed


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _other_constants(value: object) -> list[object]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value * 1.5 + (value == 0.0)]
    if isinstance(value, str) and not any(sign.isspace() for sign in value.strip()):
        return [value + "_"] if not value or any(sign.isalnum() for sign in value) else []
    return []


def _call_changes(node: ast.Call, function: ast.expr, keywords: list[ast.keyword]) -> list[ast.AST]:
    changes: list[ast.AST] = []
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in CALLS:
        renamed = copy.deepcopy(node)
        if isinstance(renamed.func, ast.Attribute):
            renamed.func.attr = CALLS[name]
        elif isinstance(renamed.func, ast.Name):
            renamed.func.id = CALLS[name]
        changes.append(renamed)
    for index in range(len(keywords)):
        shorter = copy.deepcopy(node)
        del shorter.keywords[index]
        changes.append(shorter)
    return changes
