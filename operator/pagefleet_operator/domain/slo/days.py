"""Days in UTC, as the status names them ("2026-11-24") and as numbers since 1970-01-01."""

from __future__ import annotations

import datetime

DAY_SECONDS = 86400.0
_FIRST = datetime.date(1970, 1, 1).toordinal()


def day_number(text: str) -> int | None:
    """The number of a day; None when the text names none."""
    try:
        return datetime.date.fromisoformat(text).toordinal() - _FIRST
    except ValueError:
        return None


def day_text(number: int) -> str:
    return datetime.date.fromordinal(number + _FIRST).isoformat()
