"""Buckets of S3-compatible stores: AWS, MinIO, Ceph and others. The variables are those of AWS' own tools."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from obstore.store import S3Store

from pagefleet_fetch import place
from pagefleet_fetch.files import SOURCE, Fault
from pagefleet_fetch.place import ENV, Place, first, given

if TYPE_CHECKING:
    from obstore.store import S3Config

SCHEME = "s3://"
ENDPOINTS, REGIONS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), ("AWS_REGION", "AWS_DEFAULT_REGION")
ACCESS, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
# What EKS puts into the pods of a ServiceAccount with a role: a token for STS, or the address of its Pod Identity agent.
ROLE, ROLE_TOKEN = "AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"
AGENT, AGENT_TOKEN = "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
DEFAULT_REGION = "us-east-1"
NAME = re.compile(r"[a-z0-9][-a-z0-9.]{1,61}[a-z0-9]")


@dataclass(frozen=True)
class Identity:
    """Who asks the store: in words, and as obstore's settings."""

    asker: str
    config: S3Config


def locate(uri: str, environment: Mapping[str, str]) -> Place:
    """The place of an s3:// URI. Without an identity the bucket is asked anonymously. Raises Fault for what cannot be, and obstore's
    errors."""
    [bucket], prefix = place.parts(uri, SCHEME, 1)
    if not NAME.fullmatch(bucket):
        raise Fault(SOURCE, f"{uri} must be s3://bucket[/prefix]")
    known = given(environment)
    region, who = first(known, *REGIONS) or DEFAULT_REGION, identity(known)
    config = settings(bucket, region, known) | who.config
    store = S3Store(bucket, config=config, client_options=place.client(known), retry_config=place.RETRIES)
    folder = f"s3/{bucket}--{prefix.rstrip('/').replace('/', '--')}"
    return Place(store, prefix, folder, who.asker, f"is {REGIONS[0]} right ({region})?")


def identity(known: Mapping[str, str]) -> Identity:
    """The first in AWS' order that the pod has. A node's own identity is not the pod's, and is never asked for. Raises Fault for half
    a pair of keys."""
    if (ACCESS in known) is not (SECRET in known):
        raise Fault(ENV, f"{ACCESS} and {SECRET} go together")
    if ACCESS in known:
        keys: S3Config = {"access_key_id": known[ACCESS], "secret_access_key": known[SECRET]}
        return Identity(f"the keys of {ENV}", keys | ({"session_token": known[TOKEN]} if TOKEN in known else {}))
    if ROLE in known and ROLE_TOKEN in known:
        return Identity(
            f"the role {known[ROLE]} of the pod's ServiceAccount",
            {"role_arn": known[ROLE], "web_identity_token_file": known[ROLE_TOKEN]},
        )
    if AGENT in known and AGENT_TOKEN in known:
        return Identity(
            "the pod identity of the pod's ServiceAccount",
            {"container_credentials_full_uri": known[AGENT], "container_authorization_token_file": known[AGENT_TOKEN]},
        )
    return Identity(place.unsigned(ACCESS), {"skip_signature": True})


def settings(bucket: str, region: str, known: Mapping[str, str]) -> S3Config:
    """obstore's settings of the bucket's address: the host's name is the one that AWS prefers, and that of an endpoint stays as it is.
    Raises Fault."""
    endpoint = first(known, *ENDPOINTS).rstrip("/")
    if endpoint and not endpoint.startswith(("https://", "http://")):
        raise Fault(ENV, f"{ENDPOINTS[1]} must begin with https:// or http://")
    if endpoint:
        return {"region": region, "aws_endpoint_url_s3": endpoint}
    # A certificate for *.s3.REGION.amazonaws.com does not cover a name with dots.
    return {"region": region, "virtual_hosted_style_request": "." not in bucket}
