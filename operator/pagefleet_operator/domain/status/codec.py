"""Writes and reads `.status` as Kubernetes stores it: camelCase names, RFC 3339 times.

Reading is total: a part that cannot be read is dropped.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import math
import sys
from collections.abc import Callable, Mapping, MutableMapping
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pagefleet_operator.domain.base.frozen import made
from pagefleet_operator.domain.base.json_text import json_text
from pagefleet_operator.domain.status.status import BaselineRecord, RevisionRecord, Status
from pagefleet_operator.domain.status.stored import histogram_of, snapshot_of

# Fields that hold UNIX seconds in Python and a time in JSON.
TIMES = {"last_transition_time", "since", "started", "created", "time", "starts_at", "received", "panic_since",
         "above_since", "newest", "traffic_since", "ticked", "low_since", "idle_since", "learned",
         "until", "runs_out", "written", "resets"}  # fmt: skip
MAX_TIME = 253_402_300_799.0  # the end of the year 9999: RFC 3339 has no later time
MAX_REMEMBERED = 65_536  # times, of some thousand services
INTEGER_LIMIT = 2**63  # Kubernetes stores smaller integers only
OPEN = {(RevisionRecord, "spec"): snapshot_of, (BaselineRecord, "histogram"): histogram_of}
NUMBERS = (int, float, bool)  # without which a record is not the same, also when they are 0
MEMO = "status"
ROLLOUT = "rollout"  # the record whose lists are parts of their own
Reader = Callable[..., Any]


class Parts:
    """The lists of one service's status that were read and written last. One that has not changed is neither read nor written
    again: when it is read, what its JSON says counts, and when it is written, which object it is."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[bytes, Any]] = {}
        self._written: dict[str, tuple[Any, Any]] = {}

    @classmethod
    def of(cls, memo: MutableMapping[str, object], *, kept: bool) -> Parts | None:
        """Those in the memo of a service; new ones where they are to be `kept`, and none any more where they are not."""
        before = memo.pop(MEMO, None)
        if not kept:
            return None
        parts = memo[MEMO] = before if isinstance(before, cls) else cls()
        return parts

    @classmethod
    def known(cls, memo: Mapping[str, object]) -> Parts | None:
        """Those that are in the memo of a service."""
        parts = memo.get(MEMO)
        return parts if isinstance(parts, cls) else None

    def read(self, name: str, raw: Any, reader: Reader) -> Any:
        """Read a field."""
        if name == ROLLOUT:
            return reader(raw, self)
        text = json_text(raw) if type(raw) is list else None
        if text is None:
            return reader(raw)
        known = self._read.get(name)
        if known is None or known[0] != text:
            known = self._read[name] = text, reader(raw)
        return known[1]

    def written(self, name: str, value: Any) -> Any:
        """The JSON of a field."""
        if name == ROLLOUT or type(value) is not tuple:
            return _dump(value, name, self if name == ROLLOUT else None)
        known = self._written.get(name)
        if known is None or known[0] is not value:
            known = self._written[name] = value, _dump(value, name)
        return known[1]


def dump(status: Status, parts: Parts | None = None) -> dict[str, Any]:
    """Convert a status to JSON; empty parts are left out."""
    dumped: dict[str, Any] = _dump(status, "", parts)
    return dumped


def load(document: object, parts: Parts | None = None) -> Status:
    """Read the status of an object from the API server. Total."""
    loaded = _load_record(Status, document, parts)
    return loaded if isinstance(loaded, Status) else Status()


@functools.cache
def camel(name: str) -> str:
    """Convert snake_case to camelCase."""
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


@functools.lru_cache(MAX_REMEMBERED)  # the times of a status hardly change
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


def _dump(value: Any, name: str, parts: Parts | None = None) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool:
        return value
    if kind is dict:
        return dict(value)
    if kind is float:
        if name in TIMES:
            return time_text(value) if 0 < value <= MAX_TIME else None
        return value if math.isfinite(value) else None
    if kind is tuple:
        return [_dump(item, "") for item in value]
    if dataclasses.is_dataclass(kind):
        dumped, known = {}, vars(value)
        for field, key in _keys(kind):
            item = known[field]
            if type(item) is str:
                if item:
                    dumped[key] = item
            elif item or type(item) in NUMBERS:  # neither None nor empty
                written = _dump(item, field) if parts is None else parts.written(field, item)
                if written is not None:
                    dumped[key] = written
        return dumped
    if isinstance(value, Enum):
        return value.value
    return dict(value) if isinstance(value, Mapping) else value


@functools.cache
def _keys(kind: type) -> tuple[tuple[str, str], ...]:
    """The names of a record's fields, in Python and in JSON."""
    return tuple((field.name, camel(field.name)) for field in dataclasses.fields(kind))


@functools.cache
def _reader(kind: Any, name: str) -> Reader:
    """The function that reads JSON as `kind`. It returns None when that is not possible, and raises nothing."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _reader(next(option for option in get_args(kind) if option is not type(None)), name)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return functools.partial(_load_record, kind)
    if origin is tuple:
        return _tuple_reader(get_args(kind))
    if origin is not None and issubclass(origin, Mapping):
        return lambda value: dict(value) if isinstance(value, Mapping) else None
    if isinstance(kind, type) and issubclass(kind, Enum):
        members = {member.value: member for member in kind}
        return lambda value: members.get(value) if isinstance(value, str) else None
    if kind is float:
        return _load_time if name in TIMES else _load_float
    if kind is int:
        return _load_int
    return lambda value: value if isinstance(value, kind) else None


def _load_float(value: Any) -> float | None:
    usable = type(value) is float or (isinstance(value, int | float) and not isinstance(value, bool))
    return float(value) if usable and abs(value) <= sys.float_info.max else None


def _load_time(value: Any) -> float | None:
    return _seconds(value) if isinstance(value, str) else _load_float(value)


def _load_int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < INTEGER_LIMIT else None


@functools.cache
def _readers(kind: type) -> tuple[tuple[str, str, Reader, Callable[[], Any] | None], ...]:
    """Of each field of a record: its names in Python and in JSON, its reader, and what makes the value of an omitted one; None
    where the record cannot be read without it."""
    hints = get_type_hints(kind)
    return tuple(
        (
            field.name,
            camel(field.name),
            _checked(kind, field.name, _reader(hints[field.name], field.name)),
            _omitted(field, hints[field.name]),
        )
        for field in dataclasses.fields(kind)
    )


def _omitted(field: dataclasses.Field[Any], kind: Any) -> Callable[[], Any] | None:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    value = _default_of(kind) if field.default is dataclasses.MISSING else field.default
    return None if value is dataclasses.MISSING else lambda: value


def _checked(kind: type, name: str, reader: Reader) -> Reader:
    """The reader of a field, with the check of what it holds where its type leaves that open."""
    if (kind, name) not in OPEN:
        return reader
    check = OPEN[kind, name]
    return lambda value: None if (loaded := reader(value)) is None else check(loaded)


def _load_record(kind: type, value: Any, parts: Parts | None = None) -> Any:
    if type(value) is not dict and not isinstance(value, Mapping):
        return None
    fields = {}
    for name, key, reader, omitted in _readers(kind):
        loaded = None
        if key in value:
            loaded = reader(value[key]) if parts is None else parts.read(name, value[key], reader)
        if loaded is None:
            if omitted is None:
                return None
            loaded = omitted()
        fields[name] = loaded
    return made(kind, fields)


def _tuple_reader(kinds: tuple[Any, ...]) -> Reader:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return functools.partial(_load_items, _reader(kinds[0], ""))
    return functools.partial(_load_tuple, tuple(_reader(kind, "") for kind in kinds))


def _load_items(reader: Reader, value: Any) -> tuple[Any, ...] | None:
    """A tuple of any length, without the items that cannot be read."""
    if not isinstance(value, list):
        return None
    return tuple([item for item in map(reader, value) if item is not None])


def _load_tuple(readers: tuple[Reader, ...], value: Any) -> tuple[Any, ...] | None:
    if not isinstance(value, list):
        return None
    loaded = tuple([reader(item) for reader, item in zip(readers, value, strict=False)])
    return loaded if len(loaded) == len(readers) and None not in loaded else None


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
