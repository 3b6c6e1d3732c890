"""The fields of a live object that are ours, by its managedFields: those that server-side apply wrote for our field manager.

The API server removes a field from our set when somebody else changes its value. It leaves the field in our set when others
add fields beside it, and when an admission webhook rewrites the value while we apply. So a field that is missing from our
set has to be written again, and an object whose fields are all ours has nothing to gain from another write.
Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/ (FieldsV1 of structured-merge-diff).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pagefleet_contract.names import APPLIED_ANNOTATION
from pagefleet_contract.quantity import canonical

Fields = Mapping[str, Any]
CHANGED, LOST = "changed", "lost"
ITEM, VALUE, FIELD = "k:", "v:", "f:"


def drift(desired: Mapping[str, Any], live: Mapping[str, Any], manager: str) -> tuple[str, str]:
    """Why the live object has to be applied: (kind, field); ("", "") when it has not.

    `CHANGED`: it was last applied from something else. `LOST`: somebody else has changed a field that is ours. Owners are not compared:
    the API server takes them away where a service is deleted without its children.
    """
    applied = (live["metadata"].get("annotations") or {}).get(APPLIED_ANNOTATION)
    if applied != desired["metadata"]["annotations"][APPLIED_ANNOTATION]:
        return CHANGED, ""
    fields = our_fields(live, manager)
    named = {name: desired["metadata"].get(name) for name in ("annotations", "labels")}
    ours = {"metadata": named, "spec": desired["spec"]}
    if fields is None:  # an API server without a record of who wrote what
        path = rewritten(desired["spec"], live.get("spec") or {}, "spec")
    else:
        path = lost(ours, fields) or _scaled(desired["spec"], live.get("spec") or {})
    return (LOST, path) if path else ("", "")


def our_fields(live: Mapping[str, Any], manager: str) -> Fields | None:
    """The fields that `manager` has applied; None where the API server has no record of it."""
    for entry in live["metadata"].get("managedFields") or ():
        if entry.get("manager") == manager and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: Fields = entry.get("fieldsV1") or {}
            return fields
    return None


def lost(desired: Mapping[str, Any], fields: Fields) -> str:
    """The path of the first field of `desired` that is not ours; "" when all are. Empty values count as ours."""
    return next(_lost(desired, fields, ""), "")


def owned(live: Any, fields: Fields) -> Any:
    """The part of a live object that is ours."""
    if isinstance(live, Mapping) and fields:
        return {name: owned(value, fields[FIELD + name]) for name, value in live.items() if FIELD + name in fields}
    if isinstance(live, list) and fields:
        pairs = ((item, _entry(item, fields)) for item in live)
        return [owned(item, entry) for item, entry in pairs if entry is not None]
    return live


def overwriter(live: Mapping[str, Any], manager: str) -> str:
    """The field manager, other than ours, that wrote last; "somebody" without a record of one."""
    others = [entry for entry in live["metadata"].get("managedFields") or () if entry.get("manager") != manager]
    spec = [entry for entry in others if entry.get("subresource") != "status" and "f:spec" in _fields(entry)]
    latest = max(spec, key=lambda entry: str(entry.get("time", "")), default=None)
    return str(latest.get("manager") or "somebody") if latest else "somebody"


def rewritten(desired: Any, live: Any, path: str = "") -> str:
    """The first field whose live value differs from the desired one, with both values; "" when none does.

    Fields and list entries that others have added do not matter.
    """
    return next(_rewritten(desired, live, path), "")


def _scaled(desired: Mapping[str, Any], live: Mapping[str, Any]) -> str:
    """The field of the replicas when it differs: API servers before 1.22 do not record who wrote to /scale."""
    return "spec.replicas" if "replicas" in desired and desired["replicas"] != live.get("replicas") else ""


def _fields(entry: Mapping[str, Any]) -> Fields:
    return entry.get("fieldsV1") or {}


def _lost(desired: Mapping[str, Any], fields: Fields, path: str) -> Iterator[str]:
    for name, value in desired.items():
        where = f"{path}.{name}" if path else name
        if value is None or value in ({}, []):
            continue
        if FIELD + name not in fields:
            yield where
        elif fields[FIELD + name] and isinstance(value, Mapping):
            yield from _lost(value, fields[FIELD + name], where)
        elif fields[FIELD + name] and isinstance(value, list):
            yield from _lost_items(value, fields[FIELD + name], where)


def _lost_items(desired: list[Any], fields: Fields, path: str) -> Iterator[str]:
    for index, item in enumerate(desired):
        entry, where = _entry(item, fields), f"{path}[{_named(item, index)}]"
        if entry is None:
            yield where
        elif entry and isinstance(item, Mapping):
            yield from _lost(item, entry, where)


def _entry(item: Any, fields: Fields) -> Fields | None:
    """The fields of a list's entry, by its keys or by its value; None when it is not ours."""
    for key, entry in fields.items():
        prefix, content = key[:2], key[2:]
        if prefix not in (ITEM, VALUE):
            continue
        wanted = json.loads(content)
        if prefix == VALUE and wanted == item:
            return {}
        if prefix == ITEM and isinstance(item, Mapping) and wanted.items() <= item.items():
            return entry or {}
    return None


def _named(item: Any, index: int) -> str:
    return str(item.get("name", index)) if isinstance(item, Mapping) else str(index)


def _rewritten(desired: Any, live: Any, path: str) -> Iterator[str]:
    if isinstance(desired, Mapping):
        present = live if isinstance(live, Mapping) else {}
        for name, value in sorted(desired.items()):  # the same field first, however the manifest came about
            yield from _rewritten(value, present.get(name), f"{path}.{name}" if path else name)
    elif isinstance(desired, list) and all(isinstance(item, Mapping) for item in desired):
        yield from _rewritten_items(desired, live if isinstance(live, list) else [], path)
    elif not _same(desired, live):
        yield f"{path} is {_shown(live)}, not {_shown(desired)}"


def _rewritten_items(desired: list[Any], live: list[Any], path: str) -> Iterator[str]:
    names = {item.get("name"): item for item in live if isinstance(item, Mapping)}
    given = [item.get("name") for item in desired]
    for index, item in enumerate(desired):
        # A name that stands twice is no key: a route may have two listeners of one Gateway.
        known = "name" in item and given.count(item["name"]) == 1
        other = names.get(item["name"]) if known else (live[index] if index < len(live) else None)
        yield from _rewritten(item, other, f"{path}[{_named(item, index)}]")


def _same(desired: Any, live: Any) -> bool:
    """The API server leaves false and empty out, and writes quantities in its own way: 1000m is 1."""
    if desired == live or (live is None and desired in (False, "", 0, [], {})):
        return True
    return isinstance(desired, str) and isinstance(live, str) and canonical(desired) == canonical(live)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
