"""The signature that a request to an S3-compatible store has to have: AWS Signature Version 4, for servers of tests. Written from AWS' pages and
held against the examples there, so that it is no copy of the client that it judges.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+), ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]{64})"
)


@dataclass(frozen=True)
class Keys:
    """`token` is of temporary credentials, "" for lasting ones."""

    access: str
    secret: str
    token: str = ""


def signature(
    method: str, path: str, query: str, signed: Mapping[str, str], payload: str, scope: str, secret: str
) -> str:
    """Of a request with the percent-encoded `path`, the lower-case headers `signed` and the hash of its body. `scope` is
    DAY/REGION/SERVICE/aws4_request."""
    pairs = sorted(
        (_encoded(name), _encoded(value)) for name, _, value in (one.partition("=") for one in query.split("&") if one)
    )
    canonical = "\n".join([
        method, path, "&".join(f"{name}={value}" for name, value in pairs),
        *(f"{name}:{' '.join(signed[name].split())}" for name in sorted(signed)), "", ";".join(sorted(signed)), payload,
    ])  # fmt: skip
    text = "\n".join(["AWS4-HMAC-SHA256", signed["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()


def accepts(keys: Keys, region: str, target: str, headers: Mapping[str, str]) -> bool:
    """Whether a GET of `target` (path and query as sent) is signed with the keys, for the region and today's service s3. `headers` finds
    names in any case."""
    match = AUTHORIZATION.fullmatch(headers.get("Authorization") or "")
    if match is None or headers.get("x-amz-security-token", "") != keys.token:
        return False
    access, scope, names, told = match.groups()
    path, _, query = target.partition("?")
    needed = {"host", "x-amz-content-sha256", "x-amz-date", *(["x-amz-security-token"] if keys.token else [])}
    if (
        access != keys.access
        or not needed <= set(names.split(";"))
        or scope.split("/")[1:] != [region, "s3", "aws4_request"]
    ):
        return False
    signed = {name: headers[name] for name in names.split(";")}
    return told == signature("GET", path, query, signed, headers["x-amz-content-sha256"], scope, keys.secret)


def _encoded(text: str) -> str:
    return quote(unquote(text), safe="-_.~")
