"""Signs GET requests for S3-compatible stores: AWS Signature Version 4 with an unsigned payload. Pure.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

EMPTY = hashlib.sha256(b"").hexdigest()  # of the body of a GET
ALGORITHM, SERVICE = "AWS4-HMAC-SHA256", "s3"


@dataclass(frozen=True)
class Keys:
    """`token` is of temporary credentials, "" for lasting ones."""

    access: str
    secret: str
    token: str = ""


def signed(url: str, headers: Mapping[str, str], keys: Keys, region: str, stamp: str) -> dict[str, str]:
    """The headers of a GET with its signature. `url` has its path and query percent-encoded; `stamp` is the time as 20130524T000000Z."""
    parts = urlsplit(url)
    given = {**headers, "x-amz-content-sha256": EMPTY, "x-amz-date": stamp}
    if keys.token:
        given["x-amz-security-token"] = keys.token
    lowered = {"host": parts.netloc, **{name.lower(): " ".join(value.split()) for name, value in given.items()}}
    names = ";".join(sorted(lowered))
    canonical = "\n".join([
        "GET", parts.path or "/", _query(parts.query), *(f"{name}:{lowered[name]}" for name in sorted(lowered)), "", names, EMPTY,
    ])  # fmt: skip
    scope = f"{stamp[:8]}/{region}/{SERVICE}/aws4_request"
    text = "\n".join([ALGORITHM, stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys.secret}".encode()
    for part in (stamp[:8], region, SERVICE, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    told = f"{ALGORITHM} Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**given, "Authorization": told}


def _query(query: str) -> str:
    """The parameters in the order and the encoding of the signature."""
    pairs = [part.partition("=") for part in query.split("&") if part]
    return "&".join(sorted(f"{_encoded(name)}={_encoded(value)}" for name, _, value in pairs))


def _encoded(text: str) -> str:
    return quote(unquote(text), safe="-_.~")
