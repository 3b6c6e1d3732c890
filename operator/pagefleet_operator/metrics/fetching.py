"""Asks one HTTP server for one document. Everything that the operator measures is read here, from pods that tenants control.

No redirect is followed: it would make the operator ask any URL in a tenant's name. No compressed body is accepted: a small
one can unpack to any size. A body is read up to the limit of its purpose. Every failure is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

OK, MULTIPLE_CHOICES, BAD_REQUEST = 200, 300, 400
PLAIN = "identity"  # the content coding that is none


class FetchError(Exception):
    """There is no document. The message continues a sentence that names who was asked: "answers 503". `received` are the bytes
    that were read all the same."""

    received = 0


class TooLongError(FetchError):
    """The body is longer than its purpose allows."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"answers with more than {limit} bytes")
        self.received = limit


@dataclass(frozen=True)
class Question:
    """A GET, or a POST where there is a `form`. `seconds` is the time for the whole answer."""

    url: str
    seconds: float
    max_bytes: int
    params: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    accepted: tuple[int, ...] = (OK,)


async def fetch(session: aiohttp.ClientSession, question: Question) -> bytes:
    """The body of the answer. Raises FetchError, and nothing else.

    The session must have been opened with `auto_decompress=False` (`measuring_session`): what unpacks by itself is in
    memory before its length is known.
    """
    try:
        async with session.request(
            "GET" if question.form is None else "POST",
            question.url,
            params=question.params,
            data=question.form,
            headers={**question.headers, "Accept-Encoding": PLAIN},
            timeout=aiohttp.ClientTimeout(total=question.seconds),
            allow_redirects=False,
        ) as response:
            if MULTIPLE_CHOICES <= response.status < BAD_REQUEST:
                raise FetchError(f"answers {response.status}, a redirect, and no redirect is followed")
            if response.status not in question.accepted:
                raise FetchError(f"answers {response.status}")
            if response.headers.get("Content-Encoding", PLAIN) != PLAIN:
                raise FetchError("answers with a compressed body, which was not asked for")
            return await _body(response, question.max_bytes)
    except TimeoutError as error:
        raise FetchError(f"does not answer within {question.seconds:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise FetchError(f"does not answer: {type(error).__name__}") from error


def measuring_session() -> aiohttp.ClientSession:
    """A session for `fetch`.

    It has no limit of connections for all pods together, because pods that do not answer would use them up for the others:
    `accounts` limits each tenant.
    """
    return aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=0))


async def _body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole body. Raises TooLongError beyond `limit` bytes."""
    content = bytearray()
    if (response.content_length or 0) <= limit:
        async for chunk in response.content.iter_any():
            content += chunk
            if len(content) > limit:
                break
        else:
            return bytes(content)
    raise TooLongError(limit)
