"""HTTP with what a cluster's network needs: proxies of the environment, certificates of its own, and time limits."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi
import urllib3

from pagefleet_fetch.files import Interrupted

CONNECT_SECONDS, READ_SECONDS = 10.0, 30.0
REDIRECTS = 5
CHUNK = 64 << 10  # bytes; what is lost of a chunk when a connection breaks comes again
# Of a server that may answer the same request later.
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
Response = urllib3.BaseHTTPResponse


class Web:
    """Requests to one server, and to those that it redirects to: a hub keeps large files elsewhere. urllib3 leaves the token out there."""

    def __init__(self, server: str) -> None:
        trusted = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or certifi.where())
        parts = urlsplit(server)
        proxy = getproxies().get(parts.scheme, "")
        limits = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        if proxy and not proxy_bypass(parts.netloc):
            self._pool: urllib3.PoolManager = urllib3.ProxyManager(
                proxy, timeout=limits, ssl_context=trusted, maxsize=16
            )
        else:
            self._pool = urllib3.PoolManager(timeout=limits, ssl_context=trusted, maxsize=16)

    def get(self, url: str, headers: Mapping[str, str]) -> Response:
        """The head of the answer; its body is read by the caller. Raises Interrupted."""
        retries = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=REDIRECTS)
        asked = {**headers, "Accept-Encoding": "identity"}
        try:
            answer = self._pool.request("GET", url, headers=asked, retries=retries, preload_content=False)
        except urllib3.exceptions.HTTPError as error:
            raise Interrupted(f"{named(url)} does not answer: {cause(error)}") from error
        if answer.status in PASSING:
            answer.release_conn()
            raise Interrupted(f"{named(url)} answers {answer.status}")
        return answer


def body(answer: Response, url: str) -> Iterator[bytes]:
    """The bytes of an answer. Raises Interrupted where the connection breaks before its end."""
    try:
        yield from answer.stream(CHUNK)
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise Interrupted(f"the connection to {named(url)} broke: {cause(error)}") from error
    finally:
        answer.close()


def rest(answer: Response, url: str, offset: int) -> Iterator[bytes]:
    """The bytes of an answer from `offset` on: a server without ranges sends them all. Raises Interrupted."""
    skip = offset if answer.status != 206 else 0
    if offset and not skip and answer.headers.get("Content-Range", "").partition("-")[0] != f"bytes {offset}":
        answer.close()
        raise Interrupted(f"{named(url)} answers with another range than asked")
    for chunk in body(answer, url):
        if skip >= len(chunk):
            skip -= len(chunk)
            continue
        yield chunk[skip:] if skip else chunk
        skip = 0


def named(url: str) -> str:
    """The server of a URL, without a path that can carry a signature."""
    return urlsplit(url).netloc


def cause(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return f"{type(reason).__name__}: {reason}"[:200]
