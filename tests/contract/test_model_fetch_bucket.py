"""Protects a model's way from a bucket into a pod: the real fetching process, in the environment that a pod of EKS has, asks STS or the agent of Pod
Identity for keys and signs with what it gets, goes on after its own death, takes the proxy and the certificates that it is given, and ends
at once when its pod is deleted."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.model_fetching import Fetching, new_authority
from support.s3_store import BUCKET, REGION, Issuer, Store, served
from support.sigv4 import Keys

from pagefleet_contract.model_fetch import EXIT_AGAIN
from pagefleet_local.base.certificates import Authority

URI = f"s3://{BUCKET}/llama"
CONFIGURATION_EXIT = 78
TEMPORARY = Keys("ASIAEXAMPLE", "temporary/secret", "session/+token==")
TOKEN = "a.service.account-token"
ROLE = "arn:aws:iam::123456789012:role/models"


@pytest.fixture
def store() -> Iterator[Store]:
    objects = {"llama/config.json": b"{}", "llama/m.safetensors": random.Random(1).randbytes(3_000_000)}
    with served(Store(objects)) as one:
        yield one


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return new_authority(tmp_path)


@pytest.fixture
def fetching(store: Store, tmp_path: Path) -> Fetching:
    keys = {"AWS_ACCESS_KEY_ID": "access", "AWS_SECRET_ACCESS_KEY": "secret"}
    return Fetching(tmp_path, URI, {"AWS_REGION": REGION, "AWS_ENDPOINT_URL_S3": store.url, **keys})


def complete(fetching: Fetching, store: Store) -> bool:
    return fetching.present() == {name.removeprefix("llama/"): data for name, data in store.objects.items()}


def without_keys(fetching: Fetching, **more: str) -> None:
    """A pod whose ServiceAccount has a role, and whose spec leaves the keys empty."""
    fetching.environment |= {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": " ", **more}


def token_file(folder: Path, content: str = TOKEN) -> str:
    path = folder / "token"
    path.write_text(content)
    return str(path)


def test_a_start_after_a_death_goes_on_at_its_byte(fetching: Fetching, store: Store) -> None:
    store.breaks[:], store.held, store.free = [2_000_000], threading.Event(), 3  # a list and two objects
    with fetching.started():
        reading = fetching.read_until(1_900_000)
        assert reading.size == sum(map(len, store.objects.values()))
    [kept] = [path.stat().st_size for path in fetching.folder.rglob("*.partial")]
    assert 1_900_000 < kept <= 2_000_000
    store.held.set()
    before = len(store.asked)
    assert fetching.run()[0] == 0
    assert complete(fetching, store)
    assert [asked for path, asked in store.asked[before:] if "safetensors" in path] == [f"bytes={kept}-"]


def test_a_role_of_the_service_account_is_exchanged_for_keys_over_tls(
    fetching: Fetching, store: Store, authority: Authority, tmp_path: Path
) -> None:
    store.keys = TEMPORARY
    certificate = authority.issue("sts", "sts", hosts=["127.0.0.1"])
    with served(Issuer(TEMPORARY, TOKEN, ROLE), certificate) as sts:
        without_keys(
            fetching, AWS_ROLE_ARN=ROLE, AWS_WEB_IDENTITY_TOKEN_FILE=token_file(tmp_path), AWS_ENDPOINT_URL_STS=sts.url
        )  # fmt: skip
        status, output = fetching.run()
        assert (status, sts.asked) == (EXIT_AGAIN, 0), "a server whose certificate nobody vouches for gets no token"
        fetching.environment["SSL_CERT_FILE"] = str(authority.pair.certificate)
        status, more = fetching.run()
        assert status == 0, more
        assert complete(fetching, store)
        assert sts.asked == 1
        assert TOKEN not in output + more and TEMPORARY.secret not in output + more


def test_keys_that_end_during_a_fetch_are_renewed(
    fetching: Fetching, store: Store, authority: Authority, tmp_path: Path
) -> None:
    store.keys, store.breaks[:] = TEMPORARY, [500_000, 500_000]
    certificate = authority.issue("sts", "sts", hosts=["127.0.0.1"])
    with served(Issuer(TEMPORARY, TOKEN, ROLE, seconds=1), certificate) as sts:
        without_keys(
            fetching, AWS_ROLE_ARN=ROLE, AWS_WEB_IDENTITY_TOKEN_FILE=token_file(tmp_path), AWS_ENDPOINT_URL_STS=sts.url,
            SSL_CERT_FILE=str(authority.pair.certificate),
        )  # fmt: skip
        assert fetching.run()[0] == 0
        assert complete(fetching, store)
        assert sts.asked > 1


def test_a_role_that_may_not_be_assumed_is_the_spec_s_fault(
    fetching: Fetching, authority: Authority, tmp_path: Path
) -> None:
    certificate = authority.issue("sts", "sts", hosts=["127.0.0.1"])
    with served(Issuer(TEMPORARY, "another", ROLE), certificate) as sts:
        without_keys(
            fetching, AWS_ROLE_ARN=ROLE, AWS_WEB_IDENTITY_TOKEN_FILE=token_file(tmp_path), AWS_ENDPOINT_URL_STS=sts.url,
            SSL_CERT_FILE=str(authority.pair.certificate),
        )  # fmt: skip
        status, output = fetching.run()
    assert status == CONFIGURATION_EXIT
    reason, field, message = fetching.told(status)
    assert (reason, field) == ("ModelNotFound", "spec.model.source")
    assert f"the role {ROLE} of the pod's ServiceAccount may not read it" in message
    assert TOKEN not in output + message


def test_the_agent_of_pod_identity_is_asked_for_keys(fetching: Fetching, store: Store, tmp_path: Path) -> None:
    store.keys = TEMPORARY
    with served(Issuer(TEMPORARY, TOKEN)) as agent:
        without_keys(
            fetching, AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{agent.url}/v1/credentials",
            AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=token_file(tmp_path),
        )  # fmt: skip
        status, output = fetching.run()
        assert status == 0, output
        assert complete(fetching, store) and agent.asked


def test_a_store_of_a_private_authority_is_read_over_tls(store: Store, authority: Authority, tmp_path: Path) -> None:
    with served(Store(store.objects), authority.issue("store", "store", hosts=["127.0.0.1"])) as secure:
        keys = {"AWS_ACCESS_KEY_ID": "access", "AWS_SECRET_ACCESS_KEY": "secret"}
        fetching = Fetching(tmp_path, URI, {"AWS_REGION": REGION, "AWS_ENDPOINT_URL": secure.url, **keys})
        assert fetching.run()[0] == EXIT_AGAIN
        assert not secure.asked
        fetching.environment["SSL_CERT_FILE"] = str(authority.pair.certificate)
        assert fetching.run()[0] == 0
        assert complete(fetching, store)


def test_a_proxy_is_asked_for_a_store_that_only_it_reaches(fetching: Fetching, store: Store) -> None:
    fetching.environment |= {"AWS_ENDPOINT_URL_S3": "http://store.example:9000", "HTTP_PROXY": store.url}
    status, output = fetching.run()
    assert status == 0, output
    assert complete(fetching, store)
    assert all(path.startswith("http://store.example:9000/") for path, _ in store.asked)


def test_the_container_of_a_deleted_pod_ends_at_once_while_a_store_does_not_answer(
    fetching: Fetching, store: Store
) -> None:
    store.held = threading.Event()
    with fetching.started() as process:
        fetching.until(lambda: bool(store.asked), "the store is asked")
        process.terminate()
        assert process.wait(10) == EXIT_AGAIN
    store.held.set()
