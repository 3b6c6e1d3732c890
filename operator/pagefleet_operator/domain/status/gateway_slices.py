"""The slices of one gateway's answer: what is impossible is left out. No I/O.

Documents of version 1 have no requests in flight, and those before version 3 no load-adjusted times. They read as they
always did.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypedDict, TypeGuard

import msgspec
from msgspec import Meta

from pagefleet_contract import sketch
from pagefleet_operator.domain.base.json_text import loads
from pagefleet_operator.domain.spec.schema.guard_signals import GATEWAY_SIGNALS
from pagefleet_operator.domain.status.codec import MAX_TIME
from pagefleet_operator.domain.status.observation import MAX_COUNT, Bucket, Count, LoadCounts, Slice

MAX_TEXT = 253  # of a name
MAX_LOAD_STRATA, MAX_PODS, MAX_OBJECTIVES = 24, 16, 16  # of a slice; the gateways have 18 strata, and send 8 pods
NUMBERS = frozenset((int, float))
MIN_SECONDS, MAX_SECONDS = 0.1, 3600.0  # of a slice
Histogram = dict[Bucket, Count]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]


class _Sent(msgspec.Struct, rename="camel"):
    """A slice as a gateway sends it. msgspec refuses one with an impossible part."""

    start: float
    requests: Count
    errors: Count
    revision: Text = ""
    stratum: Text = ""
    ttft: Histogram | None = None
    tpot: Histogram | None = None
    e2e: Histogram | None = None
    arrivals: Count | None = None
    tokens: Count | None = None
    started: Count | None = None
    retried: Count = 0
    client_errors: Count = 0
    timeouts: Count = 0
    fell_back: Count = 0
    # The ages of requests that have no measurement: in flight at the slice's end, or ended in it.
    waiting: Histogram = {}
    running: Histogram = {}
    left_waiting: Histogram = {}
    left_running: Histogram = {}
    unmeasured_waiting: Histogram = {}
    unmeasured_running: Histogram = {}
    load: Annotated[dict[Name, LoadCounts], Meta(max_length=MAX_LOAD_STRATA)] = {}
    pods: Annotated[dict[Name, Histogram], Meta(max_length=MAX_PODS)] = {}
    whole_load: Annotated[dict[Name, LoadCounts], Meta(max_length=MAX_LOAD_STRATA)] = {}
    whole_pods: Annotated[dict[Name, Histogram], Meta(max_length=MAX_PODS)] = {}
    slo: Annotated[dict[Name, tuple[Count, Count]], Meta(max_length=MAX_OBJECTIVES)] = {}


class _Document(TypedDict, total=False):
    """The parts of a gateway's answer that are used."""

    instance: Any
    now: Any
    sliceSeconds: Any
    held: Any
    slices: list[_Sent]


_DOCUMENT, _SLICE = msgspec.json.Decoder(_Document), msgspec.json.Decoder(_Sent)
_ADJUSTED = "load", "pods", "wholeLoad", "wholePods"
_FIELDS = {field.encode_name: field.type for field in msgspec.structs.fields(_Sent)}


def short_answer(text: str) -> Mapping[str, Any]:
    """A short answer, for `slices`. Raises ValueError for anything but an object, and RecursionError for one that is too deep."""
    known = _decoded(_DOCUMENT, text)
    if not isinstance(known, dict):
        raise ValueError("it is no object")
    return known


def entry(text: msgspec.Raw) -> Any:
    """A slice of a long answer, for `slices`. Raises what json.loads raises."""
    return _decoded(_SLICE, text)


def _decoded(decoder: msgspec.json.Decoder[Any], text: str | msgspec.Raw) -> Any:
    try:
        return decoder.decode(text)
    except msgspec.DecodeError:  # perhaps because of an impossible part
        return loads(text)


def slices(document: Any, after: float = -math.inf, adjusted_after: float = math.inf) -> Iterator[Slice]:
    """The plausible slices of one gateway's answer that begin later than `after`, and those with load-adjusted times that begin
    later than `adjusted_after`."""
    if not isinstance(document, dict):
        return
    instance, seconds, listed = document.get("instance"), document.get("sliceSeconds"), document.get("slices")
    if not isinstance(instance, str) or not isinstance(listed, list) or not is_length(seconds):
        return
    for raw in listed:
        if isinstance(raw, _Sent):
            start, adjusted = raw.start, bool(raw.load or raw.pods or raw.whole_load or raw.whole_pods)
        elif isinstance(raw, dict) and is_time(raw.get("start")):
            start, adjusted = raw["start"], any(name in raw for name in _ADJUSTED)
        else:
            continue
        if is_time(start) and (start > after or (adjusted and start > adjusted_after)):
            sent = raw if isinstance(raw, _Sent) else _sent(raw) or _sent(_mended(raw))
            if sent is not None and sent.errors <= sent.requests:
                yield _slice(sent, instance[:MAX_TEXT], seconds)


def _slice(sent: _Sent, instance: str, seconds: float) -> Slice:
    whole = not (sent.load or sent.pods) and bool(sent.whole_load or sent.whole_pods)
    load, pods = (sent.whole_load, sent.whole_pods) if whole else (sent.load, sent.pods)
    piece = Slice(
        instance=instance,
        start=sent.start,
        seconds=seconds,
        revision=sent.revision,
        stratum=sent.stratum,
        requests=sent.requests,
        errors=sent.errors,
        latency={name: own for name in GATEWAY_SIGNALS if (own := getattr(sent, name)) is not None},
        arrivals=sent.arrivals,
        tokens=sent.tokens,
        started=sent.started,
        in_flight=_ages(sent.waiting, sent.running),
        unmeasured=_ages(
            _sum(sent.left_waiting, sent.unmeasured_waiting), _sum(sent.left_running, sent.unmeasured_running)
        ),
        retried=min(sent.errors, sent.retried),
        client_errors=sent.client_errors,
        timeouts=sent.timeouts,
        fell_back=sent.fell_back,
        load=load and {name: counts for name, counts in load.items() if any(counts.tables)},
        pods=pods and {name: own for name, own in pods.items() if own},
        whole=whole,
        slo=sent.slo and {name: counts for name, counts in sent.slo.items() if counts[1] <= counts[0]},
    )
    piece.possible = True  # all that it looks at has been checked here
    return piece


def _ages(waiting: Histogram, running: Histogram) -> dict[str, Histogram]:
    """The ages of requests by the signal that they lack: those that wait have no first token, and none of them a last one."""
    ages = {"ttft": waiting} if waiting else {}
    if waiting or running:
        ages["e2e"] = _sum(waiting, running)
    return ages


def _sum(one: Histogram, other: Histogram) -> Histogram:
    return sketch.merged([one, other]) if one and other else one or other


def _mended(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A slice without what is impossible in it."""
    mended = {name: raw[name] for name, kind in _FIELDS.items() if name in raw and _fits(raw[name], kind)}
    mended |= {name: str(raw.get(name, ""))[:MAX_TEXT] for name in ("revision", "stratum")}
    for field in ("load", "wholeLoad"):
        mended[field] = {
            name: {table: own for table, own in counts.items() if _fits(own, Histogram)}
            for name, counts in _entries(raw.get(field), MAX_LOAD_STRATA)
            if isinstance(counts, dict)
        }
    for field in ("pods", "wholePods"):
        mended[field] = {name: own for name, own in _entries(raw.get(field), MAX_PODS) if _fits(own, Histogram)}
    slo = _entries(raw.get("slo"), MAX_OBJECTIVES)
    mended["slo"] = {name: counts for name, counts in slo if _fits(counts, tuple[Count, Count])}
    return mended


def _entries(raw: Any, limit: int) -> Iterator[tuple[str, Any]]:
    """The first `limit` entries of a mapping that have a plausible name."""
    named = raw.items() if isinstance(raw, dict) else ()
    plausible = ((name, value) for name, value in named if isinstance(name, str) and 0 < len(name) <= MAX_TEXT)
    return itertools.islice(plausible, limit)


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError:
        return False
    return True


def _sent(raw: Mapping[str, Any]) -> _Sent | None:
    try:
        return msgspec.convert(raw, _Sent, str_keys=True)
    except msgspec.ValidationError:
        return None


def optional(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MAX_COUNT else None


def is_time(value: Any) -> TypeGuard[float]:
    """Whether a value is a time in UNIX seconds that can be written: a tenant's own picker may send any number."""
    return type(value) in NUMBERS and 0 <= value <= MAX_TIME


def is_length(value: Any) -> TypeGuard[float]:
    """Whether a value is the length of a slice in seconds."""
    return type(value) in NUMBERS and MIN_SECONDS <= value <= MAX_SECONDS


def bucket_count(piece: Slice) -> int:
    """The size of a slice: one, and the buckets of its histograms."""
    tables = (piece.latency, piece.in_flight, piece.unmeasured)
    strata = (histogram for one in piece.load.values() for histogram in one.tables)
    histograms = (*(histogram for table in tables for histogram in table.values()), *strata, *piece.pods.values())
    return 1 + sum(map(len, histograms))
