"""Which credentials of the pod's pull secrets belong to a registry.

Source: https://kubernetes.io/docs/concepts/containers/images/#config-json: keys may have a scheme, a path below which they hold, and * in
the host's name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from pagefleet_fetch.oci.reference import HUB, HUB_ADDRESS, Reference

Credential = tuple[str, str]  # a name and its password
HUB_NAMES = (HUB, f"index.{HUB}", HUB_ADDRESS)


def credential(reference: Reference, secrets: Iterable[Any]) -> Credential | None:
    """The credential of the longest key that the repository is below; None without any. `secrets` are the documents of dockerconfigjson,
    of any form."""
    fitting = [(len(key), found) for key, found in _known(secrets) if _covers(key, reference)]
    return max(fitting)[1] if fitting else None


def _known(secrets: Iterable[Any]) -> Iterator[tuple[str, Credential]]:
    for document in secrets:
        auths = document.get("auths") if isinstance(document, Mapping) else None
        for key, entry in (auths if isinstance(auths, Mapping) else {}).items():
            if isinstance(entry, Mapping) and (found := _read(entry)):
                yield str(key), found


def _read(entry: Mapping[str, Any]) -> Credential | None:
    name, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if not name and entry.get("auth"):
        try:
            name, _, password = base64.b64decode(str(entry["auth"])).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
    return (name, password) if name and password else None


def _covers(key: str, reference: Reference) -> bool:
    host, _, path = key.partition("://")[2].partition("/") if "://" in key else key.partition("/")
    path = path.strip("/")
    if path in ("v1", "v2"):  # of the interface, as Docker's own tool writes its hub
        path = ""
    if host in HUB_NAMES:
        host = HUB
    patterns, names = host.split("."), reference.registry.split(".")
    fits = len(patterns) == len(names) and all(map(fnmatchcase, names, patterns))
    return fits and (not path or f"{reference.repository}/".startswith(f"{path}/"))
