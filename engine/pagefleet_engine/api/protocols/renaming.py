"""Errors about a translated body name the fields that the client sent. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pagefleet_engine.api.base.errors import ApiError


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Raise an ApiError of the block again, with its parameter, also within the message, renamed.

    `names`: patterns of the beginning of a parameter, and what the client calls it; the first that matches counts.
    """
    try:
        yield
    except ApiError as error:
        param, message = error.param, error.message
        for ours, theirs in names.items():
            match = re.match(rf"(?:{ours})(?=[.\[]|$)", param or "")
            if param is not None and match is not None:
                name = match.expand(theirs)
                message, param = message.replace(match[0], name), name + param[match.end() :]
                break
        made = ApiError(error.status, message, param=param, code=error.code, retry_after=error.retry_after)
        raise made from error
