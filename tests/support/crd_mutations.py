"""Every field of the CRD's spec, and the values that are tried in its place. The tests of stored objects (rows 9 and 10 of
the reliability table) share this. No test here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_operator.domain.spec.schema.spec import SPEC

Path = tuple[str | int, ...]
DEEP: Any = 0
for _ in range(90):
    DEEP = [DEEP]
# Each value is of another kind, at or over some bound, or one that a careless reader fails on.
MUTATIONS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**400, 1.5, -0.5, 1e308, "", " ", "0", "-1", "100%", "1e9s", "NaN",
    "\x00", "x" * 5000, "🦙", "../../etc/passwd", "$(id)", "9" * 400 + "s", "9" * 400 + "%", [], [None], [[]], ["x"], {},
    {"": None}, {"x": {"x": {}}}, {"name": "x"}, DEEP,
)  # fmt: skip


def leaves(part: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    """Yield the paths of every field of a schema; through arrays by their first entry."""
    if path:
        yield path
    for name, sub in (part.get("properties") or {}).items():
        yield from leaves(sub, (*path, name))
    if "items" in part:
        yield from leaves(part["items"], (*path, 0))
    if isinstance(part.get("additionalProperties"), Mapping):
        yield from leaves(part["additionalProperties"], (*path, "x"))


def changed(spec: Any, path: Path, value: Any) -> Any:
    """Return `spec` with `value` at `path`; missing objects on the path are made."""
    if not path:
        return value
    head, *rest = path
    if isinstance(head, int):
        inner = list(spec) if isinstance(spec, list) and spec else [{}]
        inner[0] = changed(inner[0], tuple(rest), value)
        return inner
    fields = dict(spec) if isinstance(spec, dict) else {}
    fields[head] = changed(fields.get(head), tuple(rest), value)
    return fields


LEAVES = tuple(leaves(SPEC))
