"""API keys: the services that each may use, and its limits a minute. Read from a file, a Secret mounted into the pod.

    - name: team-a                  # shown in logs and metrics; the key itself appears nowhere
      sha256: 9f86d081884c7d65...   # of the key, in hexadecimal; or `key: sk-...` itself
      namespaces: [team-a]          # services that it may use: all of these namespaces,
      services: [shared/chat]       # and these; neither: every service
      requestsPerMinute: 600        # of all gateway pods together; 0 or absent: no limit
      tokensPerMinute: 200000
      tokensPerMonth: 900000000     # of the calendar month (UTC), of all gateway pods together; 0 or absent: no limit
      manageAdapters: true          # may load and unload LoRA adapters at run time, where the engine allows that
    - name: batches
      sha256: ...
      actsForClients: true          # its requests count as those of the key that each names: for the batches server

Decides whether a key may use a service; never routes. Only digests stay in memory.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import yaml

from pagefleet_gateway.cluster.service import ServiceKey

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_FIELDS = {
    "name",
    "key",
    "sha256",
    "namespaces",
    "services",
    "requestsPerMinute",
    "tokensPerMinute",
    "tokensPerMonth",
    "manageAdapters",
    "actsForClients",
}
_OF_CLIENTS = _FIELDS - {"name", "key", "sha256", "actsForClients"}  # a key that acts for clients has theirs
MIN_KEY_CHARACTERS = 16
# The request headers that hold a client's key. Engines read them as `find` does (pagefleet_engine/api/base/auth.py).
AUTHORIZATION = "authorization"  # `Bearer <key>`, as OpenAI's clients send it; where it is present, it alone counts
X_API_KEY = "x-api-key"  # the key itself, as Anthropic's clients send it


class KeyFileError(ValueError):
    """The file has a value that is not allowed. The message names the entry and the field, and never a key."""


@dataclass(frozen=True)
class APIKey:
    name: str
    digest: bytes  # SHA-256 of the key
    namespaces: frozenset[str] = frozenset()
    services: frozenset[ServiceKey] = frozenset()
    requests_per_minute: int = 0  # 0: no limit
    tokens_per_minute: int = 0
    tokens_per_month: int = 0
    manage_adapters: bool = False  # may load and unload LoRA adapters in engines that allow it
    acts_for_clients: bool = False  # a request of it names the client's key whose services and limits are in force

    def allows(self, service: ServiceKey) -> bool:
        if not self.namespaces and not self.services:
            return True
        return service[0] in self.namespaces or service in self.services

    @property
    def only_namespace(self) -> str:
        """Return the namespace of all services that the key may use; "" when there are several or it may use every one."""
        seen = self.namespaces | {namespace for namespace, _ in self.services}
        return next(iter(seen)) if len(seen) == 1 else ""


class APIKeys:
    """The keys of one file; immutable."""

    def __init__(self, keys: tuple[APIKey, ...]) -> None:
        self._keys = {key.digest: key for key in keys}
        self._by_name = {key.name: key for key in keys}

    @property
    def all(self) -> Collection[APIKey]:
        return self._keys.values()

    def __len__(self) -> int:
        return len(self._keys)

    def named(self, name: str) -> APIKey | None:
        """Return a client's key by its name; None when there is none, or it acts for clients itself."""
        key = self._by_name.get(name)
        return None if key is None or key.acts_for_clients else key

    def find(self, headers: Mapping[str, str]) -> APIKey | None:
        """Return the key in `authorization: Bearer <key>`, without that header the one in `x-api-key: <key>`; None when
        it is missing or unknown."""
        if AUTHORIZATION in headers:
            scheme, _, secret = headers[AUTHORIZATION].partition(" ")
            if scheme.lower() != "bearer":
                return None
        else:
            secret = headers.get(X_API_KEY, "")
        return self._keys.get(hashlib.sha256(secret.strip().encode("latin-1", "replace")).digest())


def parse(text: str) -> APIKeys:
    """Read the file's text. Raises KeyFileError."""
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # the error's own text may quote a key
        raise KeyFileError(f"is not YAML{f' (line {mark.line + 1})' if mark is not None else ''}") from None
    except (ValueError, RecursionError):  # PyYAML's own: a name that looks like a date, and is none
        raise KeyFileError(
            "has a date or a number that does not exist (put it in quotes), or too many brackets"
        ) from None
    if not isinstance(entries, list) or not entries:
        raise KeyFileError("must be a list with at least one entry of {name, key or sha256, ...}")
    keys = tuple(_key(f"[{index}]", entry) for index, entry in enumerate(entries))
    for field, values in (("name", [key.name for key in keys]), ("key", [key.digest for key in keys])):
        if len(set(values)) < len(values):
            raise KeyFileError(f"two entries have the same {field}")
    return APIKeys(keys)


def _key(where: str, entry: object) -> APIKey:
    if not isinstance(entry, dict):
        raise KeyFileError(f"{where}: must be a mapping")
    unknown = sorted(str(name) for name in set(entry) - _FIELDS)
    if unknown:
        raise KeyFileError(f"{where}.{unknown[0]}: unknown field; allowed are {', '.join(sorted(_FIELDS))}")
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise KeyFileError(f"{where}.name: must be 1 to 63 letters, digits, '-', '_' or '.'")
    acts_for_clients = _switch(f"{where}.actsForClients", entry.get("actsForClients", False))
    if acts_for_clients and (own := sorted(_OF_CLIENTS & set(entry))):
        raise KeyFileError(f"{where}.{own[0]}: not allowed with actsForClients; the keys of the clients have it")
    services = [tuple(text.split("/")) for text in _texts(where, entry, "services")]
    if any(len(service) != 2 or not all(service) for service in services):
        raise KeyFileError(f"{where}.services: each must be <namespace>/<name>")
    return APIKey(
        name=name,
        digest=_digest(where, entry.get("key"), entry.get("sha256")),
        namespaces=frozenset(_texts(where, entry, "namespaces")),
        services=frozenset((service[0], service[1]) for service in services),
        requests_per_minute=_limit(f"{where}.requestsPerMinute", entry.get("requestsPerMinute", 0)),
        tokens_per_minute=_limit(f"{where}.tokensPerMinute", entry.get("tokensPerMinute", 0)),
        tokens_per_month=_limit(f"{where}.tokensPerMonth", entry.get("tokensPerMonth", 0)),
        manage_adapters=_switch(f"{where}.manageAdapters", entry.get("manageAdapters", False)),
        acts_for_clients=acts_for_clients,
    )


def _digest(where: str, key: object, digest: object) -> bytes:
    if (key is None) == (digest is None):
        raise KeyFileError(f"{where}: must have either `key` or `sha256`")
    if key is not None:
        if (
            not isinstance(key, str)
            or len(key) < MIN_KEY_CHARACTERS
            or not key.isascii()
            or any(c.isspace() for c in key)
        ):
            raise KeyFileError(f"{where}.key: must be at least {MIN_KEY_CHARACTERS} ASCII characters without spaces")
        return hashlib.sha256(key.encode()).digest()
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", digest):
        raise KeyFileError(f"{where}.sha256: must be 64 hexadecimal digits")
    return bytes.fromhex(digest)


def _texts(where: str, entry: Mapping[str, object], field: str) -> list[str]:
    """Return the field's names. One without a value is refused: whoever took the last name out did not mean every service."""
    if field not in entry:
        return []
    value = entry[field]
    if not isinstance(value, list) or not value or not all(isinstance(text, str) and text for text in value):
        raise KeyFileError(
            f"{where}.{field}: must be a list of names with at least one; leave it out to allow every service"
        )
    return value


def _limit(where: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise KeyFileError(f"{where}: must be a whole number of at least 0")
    return value


def _switch(where: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise KeyFileError(f"{where}: must be true or false")
    return value
