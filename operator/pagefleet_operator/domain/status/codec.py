"""Writes and reads `.status` as Kubernetes stores it: camelCase names, RFC 3339 times.

Reading is total: a part that cannot be read is dropped.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import sys
from collections.abc import Mapping
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pagefleet_operator.domain.status.status import BaselineRecord, RevisionRecord, Status
from pagefleet_operator.domain.status.stored import histogram_of, snapshot_of

# Fields that hold UNIX seconds in Python and a time in JSON.
TIMES = {"last_transition_time", "since", "started", "created", "time", "starts_at", "received", "panic_since",
         "above_since", "newest", "traffic_since", "ticked", "low_since", "idle_since", "learned",
         "until"}  # fmt: skip
MAX_TIME = 253_402_300_799.0  # the end of the year 9999: RFC 3339 has no later time
INTEGER_LIMIT = 2**63  # Kubernetes stores smaller integers only
OPEN = {(RevisionRecord, "spec"): snapshot_of, (BaselineRecord, "histogram"): histogram_of}
_HINTS: dict[type, dict[str, Any]] = {}


def dump(status: Status) -> dict[str, Any]:
    """Convert a status to JSON; empty parts are left out."""
    dumped: dict[str, Any] = _dump(status, "")
    return dumped


def load(document: object) -> Status:
    """Read the status of an object from the API server. Total."""
    loaded = _load(document, Status, "")
    return loaded if isinstance(loaded, Status) else Status()


@functools.cache
def camel(name: str) -> str:
    """Convert snake_case to camelCase."""
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def time_text(seconds: float) -> str:
    """Format UNIX seconds as RFC 3339 in UTC with microseconds."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def time_to_the_second(seconds: float) -> str:
    """Format UNIX seconds for messages; "an unknown time" for what is no time."""
    if not 0 < seconds <= MAX_TIME:
        return "an unknown time"
    text = time_text(seconds)
    return f"{text[:10]} {text[11:19]} UTC"


def _dump(value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        dumped = {camel(key): _dump(item, key) for key, item in fields.items() if not _empty(item)}
        return {key: item for key, item in dumped.items() if item is not None}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [_dump(item, "") for item in value]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, float):
        if name in TIMES:
            return time_text(value) if 0 < value <= MAX_TIME else None
        return value if math.isfinite(value) else None
    return value


def _empty(value: Any) -> bool:
    return value is None or value == () or value == {} or value == ""


def _load(value: Any, kind: Any, name: str) -> Any:
    """Read `value` as `kind`; return None when that is not possible, and raise nothing."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        inner = next(option for option in get_args(kind) if option is not type(None))
        return None if value is None else _load(value, inner, name)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _load_record(value, kind)
    if origin is tuple:
        return _load_tuple(value, get_args(kind))
    if origin is not None and issubclass(origin, Mapping):
        return dict(value) if isinstance(value, Mapping) else None
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next((member for member in kind if member.value == value), None)
    if name in TIMES and isinstance(value, str):
        return _seconds(value)
    if kind is float:
        usable = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if usable and abs(value) <= sys.float_info.max else None
    if kind is int:
        return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < INTEGER_LIMIT else None
    return value if isinstance(value, kind) else None


def _load_record(value: Any, kind: type) -> Any:
    if not isinstance(value, Mapping):
        return None
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind)
    arguments = {}
    for field in dataclasses.fields(kind):
        present = camel(field.name) in value
        loaded = _load(value[camel(field.name)], _HINTS[kind][field.name], field.name) if present else None
        if loaded is not None and (kind, field.name) in OPEN:
            loaded = OPEN[kind, field.name](loaded)
        if loaded is not None:
            arguments[field.name] = loaded
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            default = _default_of(_HINTS[kind][field.name])
            if default is dataclasses.MISSING:
                return None
            arguments[field.name] = default
    return kind(**arguments)


def _load_tuple(value: Any, kinds: tuple[Any, ...]) -> Any:
    if not isinstance(value, list):
        return None
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(item for item in (_load(item, kinds[0], "") for item in value) if item is not None)
    loaded = tuple(_load(item, kind, "") for item, kind in zip(value, kinds, strict=False))
    return loaded if len(loaded) == len(kinds) and None not in loaded else None


def _default_of(kind: Any) -> Any:
    """The value of an omitted field without a default: `dump` leaves empty text and unknown numbers out."""
    if kind is str:
        return ""
    if get_origin(kind) in (Union, UnionType):
        return None
    return 0.0 if kind is float else dataclasses.MISSING


def _seconds(text: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
