"""Numbers and times as people read them. Pure."""

from __future__ import annotations

import datetime


def moment(text: object) -> float | None:
    """UNIX seconds of an RFC 3339 time; None when it is absent or unreadable."""
    try:
        return datetime.datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        return None


def clock(text: object) -> str:
    """The UTC time of an RFC 3339 time, to the second; with the date, for a log may span days."""
    return str(text or "")[:19].replace("T", " ")


def span(seconds: float | None) -> str:
    """45s, 2m05s, 3h10m, 5d2h; "unknown" for None."""
    if seconds is None:
        return "unknown"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"


def milliseconds(seconds: float | None) -> str:
    """Three figures: 0.85 ms, 12.3 ms, 480 ms, 1.25 s; "-" for None."""
    if seconds is None:
        return "-"
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:.0f} s"
    thousandths = 1000 * seconds
    return f"{thousandths:.3g} ms" if thousandths < 100 else f"{thousandths:.0f} ms"


def binary(size: float) -> str:
    """Bytes with a binary unit: 128 KiB, 14.9 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"
