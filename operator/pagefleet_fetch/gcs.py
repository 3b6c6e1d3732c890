"""Buckets of Google Cloud Storage. The variables are those of Google's own libraries, and of obstore.

Source: https://googleapis.dev/python/google-auth/latest/reference/google.auth.environment_vars.html for the server of metadata.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from obstore.store import GCSStore

from pagefleet_fetch import place
from pagefleet_fetch.files import SOURCE, Fault
from pagefleet_fetch.place import ENV, Place, given

if TYPE_CHECKING:
    from obstore.store import GCSConfig

SCHEME = "gs://"
KEY, METADATA, ENDPOINT = "GOOGLE_SERVICE_ACCOUNT_KEY", "GCE_METADATA_HOST", "GOOGLE_BASE_URL"
NAME = re.compile(r"[a-z0-9][-_a-z0-9.]{1,220}[a-z0-9]")


def locate(uri: str, environment: Mapping[str, str]) -> Place:
    """The place of a gs:// URI. The server of metadata is asked only where the environment names it: outside of GKE's Workload Identity
    it would answer with the identity of the node. Raises Fault for what cannot be, and obstore's errors."""
    [bucket], prefix = place.parts(uri, SCHEME, 1)
    if not NAME.fullmatch(bucket):
        raise Fault(SOURCE, f"{uri} must be gs://bucket[/prefix]")
    known = given(environment)
    config: GCSConfig = {}
    if endpoint := known.get(ENDPOINT, "").rstrip("/"):
        if not endpoint.startswith(("https://", "http://")):
            raise Fault(ENV, f"{ENDPOINT} must begin with https:// or http://")
        config["base_url"] = endpoint
    if KEY in known:
        asker = f"the key {KEY} of {ENV}"
        config["service_account_key"] = known[KEY]
    elif METADATA in known:
        asker = f"the identity of the pod's ServiceAccount that {known[METADATA]} tells"
    else:
        asker = place.unsigned(f"{KEY} and no {METADATA}")
        config["skip_signature"] = True
    store = GCSStore(bucket, config=config, client_options=place.client(known), retry_config=place.RETRIES)
    folder = f"gs/{bucket}--{prefix.rstrip('/').replace('/', '--')}"
    return Place(store, prefix, folder, asker, f"is the bucket's name right ({bucket})?")
