"""Containers of Azure Blob Storage. The variables are those of Azure's own tools, and those that AKS puts into pods with a workload identity.

Source: https://azure.github.io/azure-workload-identity/docs/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from obstore.store import AzureStore

from pagefleet_fetch import place
from pagefleet_fetch.files import SOURCE, Fault
from pagefleet_fetch.place import ENV, Place, given

if TYPE_CHECKING:
    from obstore.store import AzureConfig

SCHEME = "az://"
KEY, SIGNATURE, ENDPOINT = "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_ENDPOINT"
CLIENT, TENANT, ROLE_TOKEN, AUTHORITY = (
    "AZURE_CLIENT_ID",
    "AZURE_TENANT_ID",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_AUTHORITY_HOST",
)
PUBLIC = "https://login.microsoftonline.com"
ACCOUNT_NAME, CONTAINER_NAME = re.compile(r"[a-z0-9]{3,24}"), re.compile(r"[a-z0-9$](-?[a-z0-9]){2,62}")


def locate(uri: str, environment: Mapping[str, str]) -> Place:
    """The place of an az:// URI. Without an identity the container is asked anonymously. Raises Fault for what cannot be, and obstore's
    errors."""
    names, prefix = place.parts(uri, SCHEME, 2)
    if len(names) != 2 or not ACCOUNT_NAME.fullmatch(names[0]) or not CONTAINER_NAME.fullmatch(names[1]):
        raise Fault(SOURCE, f"{uri} must be az://account/container[/prefix]")
    account, container = names
    known = given(environment)
    asker, config = identity(known)
    config["account_name"] = account
    if endpoint := known.get(ENDPOINT, "").rstrip("/"):
        if not endpoint.startswith(("https://", "http://")):
            raise Fault(ENV, f"{ENDPOINT} must begin with https:// or http://")
        config["endpoint"] = endpoint
    store = AzureStore(container, config=config, client_options=place.client(known), retry_config=place.RETRIES)
    folder = f"az/{account}--{container}--{prefix.rstrip('/').replace('/', '--')}"
    return Place(store, prefix, folder, asker, f"are the account and the container right ({account}/{container})?")


def identity(known: Mapping[str, str]) -> tuple[str, AzureConfig]:
    """Who asks, in words and as obstore's settings. Raises Fault for an authority that is not asked over TLS."""
    if KEY in known:
        return f"the key {KEY} of {ENV}", {"credential_type": "access_key", "account_key": known[KEY]}
    if SIGNATURE in known:
        return f"the signature {SIGNATURE} of {ENV}", {"credential_type": "sas_token", "sas_key": known[SIGNATURE]}
    if CLIENT in known and TENANT in known and ROLE_TOKEN in known:
        authority = known.get(AUTHORITY, PUBLIC).rstrip("/")  # AKS ends it with a slash
        if not authority.startswith("https://"):
            raise Fault(ENV, f"{AUTHORITY} must begin with https://")
        return f"the workload identity {known[CLIENT]} of the pod's ServiceAccount", {
            "credential_type": "workload_identity",
            "client_id": known[CLIENT],
            "tenant_id": known[TENANT],
            "federated_token_file": known[ROLE_TOKEN],
            "authority_host": authority,
        }
    return place.unsigned(f"{KEY} and no {SIGNATURE}"), {"skip_signature": True}
