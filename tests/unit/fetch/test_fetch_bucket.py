"""Protects models of S3-compatible stores: lists of many pages, requests that are signed as AWS documents it or not at all, checksums of SHA256SUMS,
objects that change while they are read, and the messages when a store refuses. The store here has S3's layout and refuses what is not signed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.s3_store import REGION, Store, served
from support.sigv4 import Keys, signature

from pagefleet_fetch.bucket import Bucket, checksums
from pagefleet_fetch.files import Fault, Interrupted
from pagefleet_fetch.s3 import identity, settings
from pagefleet_fetch.transfer import fetch_all

EMPTY = hashlib.sha256(b"").hexdigest()
WANTED = ("config.json", "a b+c.safetensors", "tokenizer.json")


@pytest.mark.parametrize(
    ("path", "query", "headers", "documented"),
    [
        ("/test.txt", "", {"range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("/", "lifecycle", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/", "max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_the_store_of_these_tests_judges_signatures_as_aws_documents_them(
    path: str, query: str, headers: dict[str, str], documented: str
) -> None:
    signed = {
        "host": "examplebucket.s3.amazonaws.com", "x-amz-content-sha256": EMPTY, "x-amz-date": "20130524T000000Z", **headers,
    }  # fmt: skip
    scope, secret = "20130524/us-east-1/s3/aws4_request", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    assert signature("GET", path, query, signed, EMPTY, scope, secret) == documented


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    for name in (
        "AWS_PROFILE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.delenv(name, raising=False)  # obstore reads those of the process too
    objects = {
        "llama/8b/config.json": b"{}", "llama/8b/a b+c.safetensors": bytes(range(256)) * 4000, "llama/8b/tokenizer.json": b"{ }",
        "llama/8b/train.py": b"code", "llama/8b-other/config.json": b"{}", "llama/8b/": b"", "other/x.safetensors": b"x",
    }  # fmt: skip
    with served(Store(objects)) as one:
        yield one


def bucket(store: Store, uri: str = "s3://models/llama/8b/", **more: str) -> Bucket:
    keys = {"AWS_ACCESS_KEY_ID": "access", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": REGION}
    return Bucket(uri, {**keys, "AWS_ENDPOINT_URL": store.url, **more})


def bring(store: Store, folder: Path) -> dict[str, bytes]:
    source = bucket(store)
    fetch_all(source, source.model().files, folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_objects_of_the_prefix_are_fetched_over_all_pages_and_none_that_runs(store: Store, tmp_path: Path) -> None:
    assert bring(store, tmp_path) == {name: store.objects[f"llama/8b/{name}"] for name in WANTED}
    assert sum("list-type=2" in path for path, _ in store.asked) == 3


def test_a_whole_bucket_is_a_model_too(store: Store) -> None:
    store.objects = {"config.json": b"{}", "m.safetensors": b"x", "sub/tokenizer.json": b"{}"}
    model = bucket(store, "s3://models").model()
    assert {file.name: file.size for file in model.files} == {
        "config.json": 2,
        "m.safetensors": 1,
        "sub/tokenizer.json": 2,
    }


def test_a_broken_transfer_goes_on_at_its_byte(store: Store, tmp_path: Path) -> None:
    store.breaks[:] = [300_000, 200_000, 100_000, 50_000]
    assert bring(store, tmp_path)["a b+c.safetensors"] == store.objects["llama/8b/a b+c.safetensors"]
    starts = [
        int(asked.removeprefix("bytes=").partition("-")[0])
        for path, asked in store.asked
        if "safetensors" in path and asked
    ]
    assert len(starts) == 4
    assert starts == sorted(starts) and starts[0] >= 300_000 - (64 << 10)


def test_checksums_beside_the_files_are_compared(store: Store, tmp_path: Path) -> None:
    sums = {name: hashlib.sha256(store.objects[f"llama/8b/{name}"]).hexdigest() for name in WANTED}
    store.objects["llama/8b/SHA256SUMS"] = "".join(f"{digest}  ./{name}\n" for name, digest in sums.items()).encode()
    assert set(bring(store, tmp_path / "a")) == set(WANTED)
    store.objects["llama/8b/tokenizer.json"] = b"{!}"
    with pytest.raises(Fault, match=r"tokenizer\.json arrives with the SHA-256"):
        bring(store, tmp_path / "b")
    store.objects["llama/8b/SHA256SUMS"] = f"{sums['config.json']}  config.json\n".encode()
    with pytest.raises(Fault, match="SHA256SUMS has no checksum of "):
        bring(store, tmp_path / "c")


def test_an_object_that_is_replaced_meanwhile_is_never_mixed_with_the_old_one(store: Store) -> None:
    source = bucket(store)
    model = source.model()
    [weights] = [file for file in model.files if file.name.endswith(".safetensors")]
    store.replaced = f"llama/8b/{weights.name}"
    with pytest.raises(Interrupted, match="was replaced while it was read"):
        list(source.read(weights, 10))
    assert bucket(store).model().version != model.version


def test_an_object_that_is_replaced_when_its_connection_breaks_is_never_mixed_either(store: Store) -> None:
    source = bucket(store)
    [weights] = [file for file in source.model().files if file.name.endswith(".safetensors")]
    store.breaks[:] = [300_000]
    arriving = source.read(weights, 0)
    first = next(arriving)
    store.replaced = f"llama/8b/{weights.name}"
    with pytest.raises(Interrupted, match="was replaced while it was read"):
        list(arriving)
    assert store.objects[f"llama/8b/{weights.name}"].startswith(first)


def test_temporary_credentials_are_signed_too(store: Store) -> None:
    store.keys = Keys("access", "secret", "session/+=")
    assert bucket(store, AWS_SESSION_TOKEN="session/+=\n").model().files


def test_a_public_bucket_is_asked_without_a_signature(store: Store) -> None:
    store.keys = None
    assert bucket(store, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="").model().files


def test_a_store_that_is_busy_is_asked_again(store: Store) -> None:
    store.statuses[:] = [503, 429]
    assert bucket(store).model().files
    store.statuses[:] = [503] * 9
    with pytest.raises(Interrupted, match="503"):
        bucket(store).model()


@pytest.mark.parametrize(
    ("uri", "environment", "message"),
    [
        ("s3://models/llama/8b", {"AWS_SECRET_ACCESS_KEY": "other"}, "the keys of spec.engine.env may not read it"),
        ("s3://models/llama/8b", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "a request without a signature (spec.engine.env has no AWS_ACCESS_KEY_ID, and spec.pod.serviceAccountName"),
        ("s3://models/llama/8b", {"AWS_SECRET_ACCESS_KEY": ""}, "go together"),
        ("s3://models/none", {}, "holds no *.safetensors"),
        ("s3://others/x", {}, "the store has no such bucket or object (404)"),
        ("s3://M/x", {}, "must be s3://bucket[/prefix]"),
        ("s3://models/llama/8b", {"AWS_ENDPOINT_URL": "minio:9000"}, "must begin with https:// or http://"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told(store: Store, uri: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(Fault) as refused:
        bucket(store, uri, **environment).model()
    assert message in refused.value.message


@pytest.mark.parametrize("status", [301, 400])
def test_an_answer_of_another_region_is_told_with_the_variable_to_set(store: Store, status: int) -> None:
    store.statuses[:] = [status]
    with pytest.raises(Fault, match=r"is AWS_REGION right \(eu-west-1\)\?"):
        bucket(store).model()


def test_a_list_of_another_form_is_none(store: Store) -> None:
    store.statuses[:] = [200]  # with a document that is none
    with pytest.raises(Interrupted):
        bucket(store).model()


def test_the_address_is_that_of_the_region_and_an_endpoint_stays_as_it_is() -> None:
    assert settings("models", "eu-west-1", {}) == {"region": "eu-west-1", "virtual_hosted_style_request": True}
    assert settings("my.models", "eu-west-1", {})["virtual_hosted_style_request"] is False
    given = {"AWS_ENDPOINT_URL": "http://minio:9000/", "AWS_ENDPOINT_URL_S3": "http://s3:9000/"}
    assert settings("models", "eu-west-1", given) == {"region": "eu-west-1", "aws_endpoint_url_s3": "http://s3:9000"}


def test_a_store_can_have_the_bucket_in_its_host_s_name(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "true")
    with pytest.raises(Fault, match="no such bucket"):  # of this store, whose buckets are in paths
        bucket(store).model()
    assert [path for path, _ in store.asked] == ["/?list-type=2&prefix=llama%2F8b%2F"]


def test_keys_come_before_a_role_a_role_before_an_agent_and_nobody_is_the_last() -> None:
    agent = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/agent",
    }
    role = {**agent, "AWS_ROLE_ARN": "arn:r", "AWS_WEB_IDENTITY_TOKEN_FILE": "/token"}
    keys = {**role, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    found = [set(identity(one).config) for one in (keys, role, agent, {"AWS_ROLE_ARN": "arn:r"})]
    assert found == [
        {"access_key_id", "secret_access_key"}, {"role_arn", "web_identity_token_file"},
        {"container_credentials_full_uri", "container_authorization_token_file"}, {"skip_signature"},
    ]  # fmt: skip


def test_sums_are_read_as_sha256sum_writes_them() -> None:
    digest = "a" * 64
    assert checksums(f"{digest}  x.json\n{digest} *./y/z.json\n# note\nshort  w\n") == {
        "x.json": digest,
        "y/z.json": digest,
    }
