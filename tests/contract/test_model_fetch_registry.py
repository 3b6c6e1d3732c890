"""Protects a model's way from a registry into a pod: the real fetching process, against a real registry, fetches ModelPack's artifacts, what oras
pushes and the layers of images; compares every digest; goes on where a connection broke; asks as the registry wants it, and takes nothing out of an archive
but a model's files."""

from __future__ import annotations

import hashlib
import random
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from oras.client import OrasClient
from support.model_fetching import Fetching, new_authority
from support.oci_registry import INDEX, MANIFEST, Front, Registry, Tokens, basic, packed, pull_secret, registry
from support.s3_store import send, served

from pagefleet_contract.model_fetch import EXIT_AGAIN

CONFIGURATION_EXIT = 78
REPOSITORY = "team/llama"
WEIGHTS, CONFIG, TOKENIZER = random.Random(1).randbytes(1_000_000), b'{"model_type": "llama"}', b"{}"
FILES = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "tokenizer.json": TOKENIZER}
MODELPACK, LAYER = "application/vnd.cncf.model.", "application/vnd.oci.image.layer.v1."
FETCHED = {"model": {"oci": "Fetch"}, "pod": {"imagePullSecrets": [{"name": "registry"}]}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Registry]:
    with registry(tmp_path) as one:
        yield one


def fetching(folder: Path, host: str, digest: str, path: str = "") -> Fetching:
    return Fetching(folder, f"oci://{host}/{REPOSITORY}@{digest}{path}", {}, FETCHED)


def modelpack(store: Registry) -> str:
    """An artifact with weights as they are, a packed configuration and code."""
    layers = [
        store.layer(REPOSITORY, f"{MODELPACK}weight.v1.raw", WEIGHTS, {"org.cncf.model.filepath": "model.safetensors"}),
        store.layer(REPOSITORY, f"{MODELPACK}weight.config.v1.tar+gzip", packed({"config.json": CONFIG, "tokenizer.json": TOKENIZER}, True)),
        store.layer(REPOSITORY, f"{MODELPACK}code.v1.tar", packed({"run.json": b"code"})),
    ]  # fmt: skip
    return store.manifest(REPOSITORY, layers, artifactType="application/vnd.cncf.model.manifest.v1+json")


def image(store: Registry, *layers: bytes) -> str:
    media = [f"{LAYER}tar+gzip" if data.startswith(b"\x1f\x8b") else f"{LAYER}tar" for data in layers]
    return store.manifest(REPOSITORY, [store.layer(REPOSITORY, *one) for one in zip(media, layers, strict=True)])


def test_an_artifact_of_modelpack_is_fetched_without_its_code(store: Registry, tmp_path: Path) -> None:
    start = fetching(tmp_path, store.host, modelpack(store))
    status, output = start.run()
    assert status == 0, output
    assert start.present() == FILES
    assert not [path for path in start.model.resolve().iterdir() if path.is_dir()], "no archive is left"


def test_an_artifact_of_kitops_is_fetched_below_its_path(store: Registry, tmp_path: Path) -> None:
    kit = "application/vnd.kitops.modelkit."
    layers = [
        store.layer(REPOSITORY, f"{kit}model.v1.tar+gzip", packed({f"weights/{name}": data for name, data in FILES.items()}, True)),
        store.layer(REPOSITORY, f"{kit}dataset.v1.tar", packed({"weights/data.json": b"[]"})),
    ]  # fmt: skip
    start = fetching(tmp_path, store.host, store.manifest(REPOSITORY, layers), "/weights/")
    status, output = start.run()
    assert status == 0, output
    assert start.present() == FILES


def test_what_oras_pushes_is_fetched(store: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "pushed"
    (folder / "more").mkdir(parents=True)
    for name, data in FILES.items():
        (folder / ("more" if name == "tokenizer.json" else "") / name).write_bytes(data)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # oras leaves its folders behind
    answer = OrasClient(insecure=True).push(
        f"{store.host}/{REPOSITORY}:v1", files=["config.json", "model.safetensors", "more"]
    )
    start = fetching(tmp_path, store.host, answer.headers["Docker-Content-Digest"])
    status, output = start.run()
    assert status == 0, output
    assert start.present() == {name.replace("tokenizer", "more/tokenizer"): data for name, data in FILES.items()}


def test_the_layers_of_an_image_lie_over_each_other(store: Registry, tmp_path: Path) -> None:
    system = packed(
        {"etc/os.json": b"1", "models/config.json": b"old", "models/gone.json": b"x", "models/old/a.json": b"x"}
    )
    later = packed({"./models/config.json": CONFIG, "models/.wh.gone.json": b"", "models/old/.wh..wh..opq": b"", "models/run.py": b"x"}, True)  # fmt: skip
    weights = packed({"/models/model.safetensors": WEIGHTS, "models/tokenizer.json": TOKENIZER}, True)
    start = fetching(tmp_path, store.host, image(store, system, later, weights), "/models")
    status, output = start.run()
    assert status == 0, output
    assert start.present() == FILES


def test_an_index_leads_to_the_image_of_this_machine(store: Registry, tmp_path: Path) -> None:
    named = {one: image(store, packed({**FILES, "config.json": one.encode()})) for one in ("amd64", "arm64")}
    entries = [
        {"mediaType": MANIFEST, "digest": digest, "size": 1, "platform": {"architecture": one, "os": "linux"}}
        for one, digest in named.items()
    ]
    start = fetching(tmp_path, store.host, store.document(REPOSITORY, INDEX, {"manifests": entries}))
    assert start.run()[0] == 0
    assert start.present()["config.json"] in (b"amd64", b"arm64")


@pytest.mark.parametrize("ranges", [True, False])
def test_a_connection_that_breaks_is_resumed(store: Registry, tmp_path: Path, ranges: bool) -> None:
    digest = modelpack(store)
    with served(Front(store.host, ranges=ranges)) as front:
        start = fetching(tmp_path, front.host, digest)
        front.breaks[:] = [200_000, 150_000]
        status, output = start.run()
        assert status == 0, output
        assert start.present() == FILES
        assert [asked for path, asked in front.asked if "/blobs/" in path and asked]


def test_a_kept_digest_needs_no_registry(store: Registry, tmp_path: Path) -> None:
    digest = modelpack(store)
    with served(Front(store.host)) as front:
        start = fetching(tmp_path, front.host, digest)
        assert start.run()[0] == 0
    assert start.run()[0] == 0
    other = f"oci://{front.host}/{REPOSITORY}@sha256:{'0' * 64}"
    status, output = start.run(other)
    assert status == EXIT_AGAIN, f"another digest was given the kept files: {output}"


def test_bytes_of_another_digest_are_never_linked(store: Registry, tmp_path: Path) -> None:
    digest, weights = modelpack(store), hashlib.sha256(WEIGHTS).hexdigest()
    with served(Front(store.host)) as front:
        start = fetching(tmp_path, front.host, digest)
        front.changed = lambda path, data: data[:-1] + b"x" if weights in path else data
        status, _ = start.run()
        assert status == CONFIGURATION_EXIT
        assert "model.safetensors arrives with the SHA-256" in start.told(status)[2]
        front.changed = lambda path, data: data + b" " if "/manifests/" in path else data
        status, _ = start.run()
        assert status == CONFIGURATION_EXIT
        assert "answers with a manifest of digest" in start.told(status)[2]
        assert not start.model.exists()


def test_an_artifact_that_is_not_there_is_the_spec_s_fault(store: Registry, tmp_path: Path) -> None:
    start = fetching(tmp_path, store.host, f"sha256:{'0' * 64}")
    status, _ = start.run()
    assert status == CONFIGURATION_EXIT
    reason, field, message = start.told(status)
    assert (reason, field) == ("ModelNotFound", "spec.model.source")
    assert message.endswith("the registry has no such artifact or layer (404)")


def link(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return member


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (packed({**FILES, "../../x.json": b"out"}), "leads out of it"),
        (packed(FILES, False, link("x.json")), "as a link or a device"),
        (packed({"pytorch_model.bin": b"a pickle", "config.json": b"{}"}), "holds no *.safetensors"),
        (packed({**FILES, "zeros.bin": bytes(80 << 20)}, True), "holds more than"),
        (packed(FILES, True)[:-500_000], "cannot be unpacked"),
        (packed({**FILES, ".wh...": b""}), "names no file"),
        (bytes.fromhex("28b52ffd") + b"0" * 600, "zstd"),
    ],
    ids=["outside", "link", "pickle", "large", "cut", "mark", "zstd"],
)
def test_an_archive_with_what_no_model_has_is_refused(store: Registry, tmp_path: Path, data: bytes, told: str) -> None:
    start = fetching(tmp_path, store.host, image(store, data))
    status, output = start.run()
    assert status == CONFIGURATION_EXIT, output
    assert told in start.told(status)[2]
    assert not start.model.exists() and not [*tmp_path.rglob("x.json")]


def test_a_registry_with_passwords_is_asked_with_the_pull_secret(store: Registry, tmp_path: Path) -> None:
    digest = modelpack(store)
    with registry(tmp_path, basic(tmp_path)) as closed:
        start = fetching(tmp_path, closed.host, digest)
        for password, who in (("", "a request without credentials"), ("wrong", "(models)")):
            if password:
                pull_secret(start.secrets, closed.host, password)
            status, output = start.run()
            assert status == CONFIGURATION_EXIT
            message = start.told(status)[2]
            assert who in message and "may not read the manifest" in message and "wrong" not in output
        pull_secret(start.secrets, closed.host)
        status, output = start.run()
        assert status == 0, output
        assert start.present() == FILES


@pytest.mark.parametrize("anonymous", [True, False])
def test_a_token_is_asked_for_and_renewed_when_it_ends(store: Registry, tmp_path: Path, anonymous: bool) -> None:
    digest = modelpack(store)
    with (
        served(Tokens(new_authority(tmp_path), anonymous)) as tokens,
        registry(tmp_path, tokens.auth) as closed,
        served(Front(closed.host, ended=1)) as front,
    ):
        start = fetching(tmp_path, front.host, digest)
        if not anonymous:
            status, _ = start.run()
            assert status == CONFIGURATION_EXIT
            assert "a request without credentials" in start.told(status)[2]
            pull_secret(start.secrets, front.host)
        status, output = start.run()
        assert status == 0, output
        assert start.present() == FILES
        assert (tokens.given, front.ended) == (2, 0)


def test_a_mirror_is_asked_first_and_the_registry_where_the_mirror_has_nothing(store: Registry, tmp_path: Path) -> None:
    digest = modelpack(store)
    with served(Front(store.host)) as mirror:
        start = fetching(tmp_path, "registry.invalid", digest)
        start.environment["OCI_MIRRORS"] = f"registry.invalid={mirror.host}, other.invalid=nothing.invalid"
        status, output = start.run()
        assert status == 0, output
        assert start.present() == FILES
        again = fetching(tmp_path / "again", store.host, digest)
        again.folder.mkdir()
        again.environment["OCI_MIRRORS"] = f"{store.host}={mirror.host}/none"
        status, output = again.run()
        assert status == 0, output
        assert any("/none/" in path for path, _ in mirror.asked)


def test_a_registry_elsewhere_is_asked_over_tls_only(store: Registry, tmp_path: Path) -> None:
    digest, authority = modelpack(store), new_authority(tmp_path)
    with registry(tmp_path, address="127.0.0.2") as plain:
        status, output = fetching(tmp_path, plain.host, digest).run()
        assert status == EXIT_AGAIN, output
    with registry(tmp_path, None, authority.issue("r", "r", hosts=["127.0.0.2"]), "127.0.0.2") as secure:
        start = fetching(tmp_path, secure.host, digest)
        assert start.run()[0] == EXIT_AGAIN, "nobody vouches for its certificate"
        start.environment["SSL_CERT_FILE"] = str(authority.pair.certificate)
        status, output = start.run()
        assert status == 0, output
        assert start.present() == FILES


@dataclass
class Elsewhere:
    """A registry whose answers are at another server, or which has tokens given there."""

    status: int
    place: str
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        named = {"Location": self.place, "Www-Authenticate": f'Bearer realm="{self.place}",service="s",scope="r"'}
        send(handler, self.status, b"", more=named)


@pytest.mark.parametrize("status", [307, 401])
def test_a_registry_leads_to_no_server_without_tls(tmp_path: Path, status: int) -> None:
    authority = new_authority(tmp_path)
    with (
        served(Front("127.0.0.1:1")) as plain,
        served(Elsewhere(status, plain.url), authority.issue("r", "r", hosts=["127.1"])) as led,
    ):
        host = led.url.rpartition("/")[2].replace("127.0.0.1", "127.1")  # another name of this machine
        start = fetching(tmp_path, host, f"sha256:{'0' * 64}")
        start.environment["SSL_CERT_FILE"] = str(authority.pair.certificate)
        pull_secret(start.secrets, host)
        exit_status, output = start.run()
        assert exit_status == CONFIGURATION_EXIT, output
        assert "leads to a server without TLS" in start.told(exit_status)[2]
        assert plain.asked == []
