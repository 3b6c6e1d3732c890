"""Where a model's objects are, and the connections by which obstore (Apache Arrow's object_store) reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import certifi

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

ENV, ACCOUNT = "spec.engine.env", "spec.pod.serviceAccountName"
CONNECT, READ = timedelta(seconds=10), timedelta(seconds=30)  # to connect, and without a byte
NEVER = timedelta(days=30)  # how long a whole file may take; obstore has a limit of 30 s otherwise
RETRIES: RetryConfig = {"max_retries": 2, "retry_timeout": timedelta(minutes=1)}


@dataclass(frozen=True)
class Place:
    """`prefix` ends with a slash, or is "" for a whole bucket. `folder` is the model's in a cache, without its version. `asker` says who
    asks, and `check` which setting to look at when a store refuses what it is asked."""

    store: ObjectStore
    prefix: str
    folder: str
    asker: str
    check: str


def parts(uri: str, scheme: str, count: int) -> tuple[list[str], str]:
    """The first `count` names of a URI, fewer where it has fewer, and the prefix after them."""
    names = uri.removeprefix(scheme).split("/", count)
    prefix = names.pop().strip("/") if len(names) > count else ""
    return names, f"{prefix}/" if prefix else ""


def given(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that have a value, without the line end of a Secret's file."""
    return {name: text for name, value in environment.items() if (text := value.strip())}


def first(known: Mapping[str, str], *names: str) -> str:
    """The value of the first of these variables that is there; "" without any."""
    return next((known[name] for name in names if name in known), "")


def client(known: Mapping[str, str]) -> ClientConfig:
    """Connections with the certificates of the environment. Proxies are read from it by obstore. Raises OSError."""
    return {
        "allow_http": True,  # of an endpoint in the cluster
        "connect_timeout": CONNECT,
        "read_timeout": READ,
        "timeout": NEVER,
        "root_certificate": Path(first(known, "SSL_CERT_FILE") or certifi.where()).read_bytes(),
    }


def unsigned(without: str) -> str:
    """Who asks without an identity. `without` is what would have given one."""
    return f"a request without a signature ({ENV} has no {without}, and {ACCOUNT} names no account with a role)"
