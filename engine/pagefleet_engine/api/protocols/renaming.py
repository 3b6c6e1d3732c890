"""Errors about a translated body name the fields that the client sent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pagefleet_engine.api.base.errors import ApiError


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Raise an ApiError of the block again, with its parameter, also within the message, renamed."""
    try:
        yield
    except ApiError as error:
        param, message = error.param, error.message
        for ours, theirs in names.items():
            if param is not None and (param == ours or param.startswith((f"{ours}.", f"{ours}["))):
                message = message.replace(ours, theirs)
                param = theirs + param[len(ours) :]
        made = ApiError(error.status, message, param=param, code=error.code, retry_after=error.retry_after)
        raise made from error
