"""Asks the operator's own Prometheus. A failure is returned as a reason; nothing is raised.

Only the operator's own address is asked. A URL in the spec would let every author of a spec aim the operator, with its
token, at any host.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from pagefleet_operator.metrics import long_json
from pagefleet_operator.metrics.accounts import unlimited
from pagefleet_operator.metrics.fetching import FetchError, Question, fetch

TIMEOUT_SECONDS = 2.0
RESULT = ("data", "result")  # where an answer is long
ANSWERS = (200, 400, 422)  # the last two explain what is wrong with a query
NOWHERE = "the operator has no Prometheus: set PAGEFLEET_PROMETHEUS_URL"
log = logging.getLogger(__name__)


class Prometheus:
    """`url` "" means that there is no Prometheus. `token_file` is read each time, because the token may be renewed. `timeout`:
    seconds for one query."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        token_file: Path | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self._session, self._url, self._token_file, self._timeout = session, url.rstrip("/"), token_file, timeout

    async def ask(self, query: str, max_bytes: int) -> tuple[Any, str]:
        """The JSON of an answer of /api/v1/query, and ""; or None and the reason why there is none."""
        if not self._url:
            return None, NOWHERE
        form = {"query": query, "timeout": f"{self._timeout:g}s"}
        try:
            question = Question(
                f"{self._url}/api/v1/query",
                self._timeout,
                max_bytes,
                form=form,
                headers=self._headers(),
                accepted=ANSWERS,
            )
            text = (await fetch(self._session, question)).decode()
            return await long_json.load(text, RESULT, unlimited()), ""
        except FetchError as error:
            log.warning("Prometheus %s", error)
            return None, f"Prometheus {error}"
        except (OSError, ValueError, RecursionError) as error:
            log.warning("Prometheus: %s", error or type(error).__name__)
            return None, f"Prometheus does not answer: {type(error).__name__}"

    def _headers(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        return {"Authorization": f"Bearer {self._token_file.read_text().strip()}"}


def result(document: Any) -> tuple[str, list[Any], str]:
    """(type, result, "") of an answer with a result; ("", [], reason) without one."""
    if not isinstance(document, Mapping) or document.get("status") != "success":
        error = document.get("error") if isinstance(document, Mapping) else None
        return "", [], f"Prometheus answers {str(error or 'no success')[:200]}"
    data = document.get("data")
    listed = data.get("result") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(listed, list):
        return "", [], "Prometheus' answer has no result"
    return str(data.get("resultType")), listed, ""
