"""Who may read the status page: whoever shows the token of a mounted Secret, as a bearer token (tools, an auth proxy) or
once in the sign-in form, which makes a signed cookie. No token, no page. Keeps no sessions.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

COOKIE = "pagefleet-status"
LASTS_SECONDS = 12 * 3600


class Sessions:
    """Checks tokens and cookies. `token_file` is read each time: a renewed Secret takes effect at once, and cookies that
    were signed with the old token end."""

    def __init__(self, token_file: Path) -> None:
        self._token_file = token_file

    def token(self) -> str:
        """The token; "" when there is none, and then the page is off."""
        try:
            return self._token_file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""

    def matches(self, given: str) -> bool:
        """Whether a request carries the right token or a valid cookie."""
        token = self.token()
        return bool(token) and hmac.compare_digest(_bytes(given), token.encode())

    def allows(self, authorization: str, cookie: str, now: float) -> bool:
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "bearer" and self.matches(given.strip()):
            return True
        until, _, signature = cookie.partition(".")
        token = self.token()
        if not token or not (until.isascii() and until.isdigit()) or len(until) > 12 or int(until) <= now:
            return False
        return hmac.compare_digest(_bytes(signature), _signature(token, until).encode())

    def cookie(self, now: float) -> str:
        """A cookie's value, which `allows` accepts for LASTS_SECONDS."""
        until = str(int(now) + LASTS_SECONDS)
        return f"{until}.{_signature(self.token(), until)}"


def _bytes(text: str) -> bytes:
    """The bytes of a text that a client sent. Bytes that were no UTF-8 arrive as lone surrogates."""
    return text.encode(errors="surrogatepass")


def _signature(token: str, until: str) -> str:
    return hmac.new(token.encode(), f"{COOKIE}.{until}".encode(), hashlib.sha256).hexdigest()
