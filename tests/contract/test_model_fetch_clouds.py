"""Protects a model's way from Google Cloud Storage and Azure Blob Storage into a pod: the real fetching process lists pages, goes on where a connection
broke, never mixes two versions of an object, and asks with the key, the signature or the workload identity that its environment has, or
with none."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cloud_stores import ACCOUNT, Blobs, ServiceAccount, Tokens
from support.model_fetching import Fetching
from support.s3_store import BUCKET, Store, served

from pagefleet_contract.model_fetch import EXIT_AGAIN
from pagefleet_fetch.bucket import Bucket
from pagefleet_fetch.files import Fault, Interrupted
from pagefleet_local.base.certificates import Authority

CONFIGURATION_EXIT = 78
KEY = base64.b64encode(b"an account's key").decode()
OBJECTS = {
    "llama/config.json": b"{}", "llama/a b+c.safetensors": random.Random(1).randbytes(2_000_000), "llama/tokenizer.json": b"{ }",
    "llama/modeling.py": b"code", "llama-other/config.json": b"{}",
}  # fmt: skip
WANTED = ("config.json", "a b+c.safetensors", "tokenizer.json")


@pytest.fixture
def google() -> Iterator[Store]:
    with served(Store(dict(OBJECTS), keys=None)) as one:
        yield one


@pytest.fixture
def blobs() -> Iterator[Blobs]:
    with served(Blobs(dict(OBJECTS), keys=None)) as one:
        yield one


def from_google(store: Store, folder: Path, **more: str) -> Fetching:
    return Fetching(folder, f"gs://{BUCKET}/llama", {"GOOGLE_BASE_URL": store.url, **more})


def from_azure(store: Blobs, folder: Path, **more: str) -> Fetching:
    return Fetching(folder, f"az://{ACCOUNT}/{BUCKET}/llama", {"AZURE_STORAGE_ENDPOINT": store.url, **more})


def complete(fetching: Fetching) -> bool:
    return fetching.present() == {name: OBJECTS[f"llama/{name}"] for name in WANTED}


@pytest.mark.parametrize("cloud", ["google", "blobs"])
def test_a_public_bucket_is_fetched_over_all_pages_and_goes_on_where_it_broke(
    cloud: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = request.getfixturevalue(cloud)
    fetching = from_azure(store, tmp_path) if cloud == "blobs" else from_google(store, tmp_path)
    store.breaks[:] = [900_000, 500_000]
    status, output = fetching.run()
    assert status == 0, output
    assert complete(fetching)
    asked = [asked for path, asked in store.asked if "safetensors" in path]
    starts = [int(one.removeprefix("bytes=").partition("-")[0]) for one in asked if one]
    assert len(starts) == 2 and starts == sorted(starts) and starts[0] >= 900_000 - (64 << 10)
    assert len([path for path, _ in store.asked if "prefix=" in path]) == 2


@pytest.mark.parametrize("cloud", ["google", "blobs"])
def test_a_replaced_object_is_never_mixed_with_the_old_one(cloud: str, request: pytest.FixtureRequest) -> None:
    store = request.getfixturevalue(cloud)
    uri = f"az://{ACCOUNT}/{BUCKET}/llama" if cloud == "blobs" else f"gs://{BUCKET}/llama"
    source = Bucket(uri, {"AZURE_STORAGE_ENDPOINT": store.url, "GOOGLE_BASE_URL": store.url})
    [weights] = [file for file in source.model().files if file.name.endswith(".safetensors")]
    store.replaced = f"llama/{weights.name}"
    with pytest.raises(Interrupted, match="was replaced while it was read"):
        list(source.read(weights, 10))


def test_the_workload_identity_of_gke_is_asked_for_a_token(google: Store, tmp_path: Path) -> None:
    google.bearer = lambda token: token == "ya29.workload"
    with served(Tokens("ya29.workload")) as metadata:
        fetching = from_google(google, tmp_path, GCE_METADATA_HOST=metadata.url.removeprefix("http://"))
        status, output = fetching.run()
        assert status == 0, output
        assert complete(fetching) and metadata.asked
        assert "ya29" not in output


def test_a_key_of_a_google_account_signs_its_own_tokens(google: Store, tmp_path: Path) -> None:
    account, other = ServiceAccount(), ServiceAccount()
    google.bearer = account.judges
    fetching = from_google(google, tmp_path, GOOGLE_SERVICE_ACCOUNT_KEY=account.file)
    status, output = fetching.run()
    assert status == 0, output
    assert complete(fetching)
    refused = from_google(google, tmp_path, GOOGLE_SERVICE_ACCOUNT_KEY=other.file)
    status, _ = refused.run()
    assert status == CONFIGURATION_EXIT
    assert "the key GOOGLE_SERVICE_ACCOUNT_KEY of spec.engine.env may not read it" in refused.told(status)[2]
    broken = from_google(google, tmp_path, GOOGLE_SERVICE_ACCOUNT_KEY="no JSON")
    status, output = broken.run()
    assert (status, broken.told(status)[1]) == (CONFIGURATION_EXIT, "spec.engine.env")
    assert "no JSON" not in output


def test_the_key_of_an_azure_account_signs_each_request(blobs: Blobs, tmp_path: Path) -> None:
    blobs.key = base64.b64decode(KEY)
    fetching = from_azure(blobs, tmp_path, AZURE_STORAGE_ACCOUNT_KEY=f"{KEY}\n")
    status, output = fetching.run()
    assert status == 0, output
    assert complete(fetching)
    refused = from_azure(blobs, tmp_path, AZURE_STORAGE_ACCOUNT_KEY=base64.b64encode(b"another").decode())
    status, _ = refused.run()
    assert status == CONFIGURATION_EXIT
    assert "the key AZURE_STORAGE_ACCOUNT_KEY of spec.engine.env may not read it" in refused.told(status)[2]


def test_a_shared_access_signature_is_in_each_request_and_in_no_message(blobs: Blobs, tmp_path: Path) -> None:
    blobs.signature = "c2lnbmVk+/=="
    signature = "sv=2023-11-03&ss=b&srt=co&sp=rl&sig=c2lnbmVk%2B%2F%3D%3D"
    fetching = from_azure(blobs, tmp_path, AZURE_STORAGE_SAS_TOKEN=f"?{signature}")
    status, output = fetching.run()
    assert status == 0, output
    assert complete(fetching)
    blobs.signature = "another"
    status, output = fetching.run()
    assert status == CONFIGURATION_EXIT
    assert "c2lnbmVk" not in output + fetching.told(status)[2]


def test_the_workload_identity_of_aks_is_exchanged_for_a_token_over_tls(blobs: Blobs, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    authority.ensure()
    blobs.bearer = lambda token: token == "eyJ.workload"
    (tmp_path / "token").write_text("a.projected.token")
    certificate = authority.issue("entra", "entra", hosts=["127.0.0.1"])
    with served(Tokens("eyJ.workload", assertion="a.projected.token"), certificate) as entra:
        own = {
            "AZURE_CLIENT_ID": entra.client, "AZURE_TENANT_ID": entra.tenant, "AZURE_FEDERATED_TOKEN_FILE": str(tmp_path / "token"),
            "AZURE_AUTHORITY_HOST": f"{entra.url}/",
        }  # fmt: skip
        fetching = from_azure(blobs, tmp_path, **own)
        status, output = fetching.run()
        assert (status, entra.asked) == (EXIT_AGAIN, []), "a server whose certificate nobody vouches for gets no token"
        fetching.environment["SSL_CERT_FILE"] = str(authority.pair.certificate)
        status, more = fetching.run()
        assert status == 0, more
        assert complete(fetching)
        assert "projected" not in output + more
        fetching.environment["AZURE_AUTHORITY_HOST"] = entra.url.replace("https", "http")
        status, _ = fetching.run()
        assert status == CONFIGURATION_EXIT
        assert "AZURE_AUTHORITY_HOST must begin with https://" in fetching.told(status)[2]


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("gs://M/x", "must be gs://bucket[/prefix]"),
        ("az://models", "must be az://account/container[/prefix]"),
        ("az://Models/llama", "must be az://account/container[/prefix]"),
        ("az://models/-/x", "must be az://account/container[/prefix]"),
    ],
)
def test_a_uri_that_cannot_be_is_told(uri: str, message: str) -> None:
    """By the container too: the schema of a spec is not so narrow."""
    with pytest.raises(Fault) as refused:
        Bucket(uri, {})
    assert refused.value.field == "spec.model.source"
    assert message in refused.value.message
