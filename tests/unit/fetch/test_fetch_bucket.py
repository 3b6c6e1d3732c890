"""Protects models of S3-compatible stores: signatures as AWS documents them, lists of many pages, checksums of SHA256SUMS, and objects that change
while they are read. The store here has S3's layout and refuses what is not signed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from pagefleet_fetch.bucket import Bucket, checksums, listed
from pagefleet_fetch.files import Fault, Interrupted
from pagefleet_fetch.signing import Keys, signed
from pagefleet_fetch.transfer import fetch_all

# https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html: the keys and three of the examples.
DOCUMENTED = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "https://examplebucket.s3.amazonaws.com"
PAGE = 2  # objects of a list
ACCESS, SECRET = "access", "secret"
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


@pytest.mark.parametrize(
    ("url", "headers", "signature"),
    [
        ("/test.txt", {"Range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        ("/?lifecycle", {}, "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/?max-keys=2&prefix=J", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_signatures_are_those_that_aws_documents(url: str, headers: dict[str, str], signature: str) -> None:
    made = signed(f"{HOST}{url}", headers, DOCUMENTED, "us-east-1", "20130524T000000Z")
    assert made["Authorization"].endswith(f"Signature={signature}")


class Store:
    """A bucket `models` with these objects. `replaced`: an object changes after the list was read."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects, self.asked, self.breaks, self.replaced = objects, list[tuple[str, str]](), list[int](), ""
        self.url, self.token = "", ""

    def etag(self, key: str) -> str:
        changed = b"changed" if key == self.replaced else b""
        return f'"{hashlib.md5(self.objects[key] + changed, usedforsecurity=False).hexdigest()}"'

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts, given = urlsplit(handler.path), handler.headers
        self.asked.append((handler.path, given.get("Range", "")))
        names = given.get("Authorization", "").partition("SignedHeaders=")[2].partition(",")[0].split(";")
        own = ("host", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token")
        headers = {name: given[name] for name in names if name and name not in own}
        keys = Keys(ACCESS, SECRET, self.token)
        made = signed(f"{self.url}{handler.path}", headers, keys, "eu-west-1", given.get("x-amz-date", ""))
        if made["Authorization"].lower() != given.get("Authorization", "").lower():
            self.send(handler, 403, b"")
        elif parts.query:
            self.send(handler, 200, self.page({name: one[0] for name, one in parse_qs(parts.query).items()}))
        else:
            self.object(handler, unquote(parts.path).removeprefix("/models/"))

    def object(self, handler: BaseHTTPRequestHandler, key: str) -> None:
        data = self.objects.get(key)
        if data is None:
            return self.send(handler, 404, b"")
        if handler.headers.get("If-Match", self.etag(key)) != self.etag(key):
            return self.send(handler, 412, b"")
        start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        end = start + self.breaks.pop(0) if self.breaks and key.endswith(".safetensors") else len(data)
        return self.send(handler, 206 if start else 200, data[start:end], len(data) - start)

    def page(self, query: dict[str, str]) -> bytes:
        keys = sorted(key for key in self.objects if key.startswith(query.get("prefix", "")))
        start = int(query.get("continuation-token", "0"))
        rows = [
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size><ETag>{escape(self.etag(key))}</ETag></Contents>"
            for key in keys[start : start + PAGE]
        ]
        more = start + PAGE < len(keys)
        end = f"<NextContinuationToken>{start + PAGE}</NextContinuationToken>" if more else ""
        told = f"<IsTruncated>{str(more).lower()}</IsTruncated>{end}"
        return f'<ListBucketResult xmlns="{NAMESPACE}">{"".join(rows)}{told}</ListBucketResult>'.encode()

    @staticmethod
    def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, length: int | None = None) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        handler.end_headers()
        handler.wfile.write(body)


@pytest.fixture
def store() -> Iterator[Store]:
    held = Store({
        "llama/8b/config.json": b"{}", "llama/8b/a b+c.safetensors": bytes(range(256)) * 4000, "llama/8b/tokenizer.json": b"{ }",
        "llama/8b/train.py": b"code", "llama/8b-other/config.json": b"{}", "llama/8b/": b"", "other/x.safetensors": b"x",
    })  # fmt: skip

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            held.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Tests look at `asked`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    held.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield held
    server.shutdown()
    server.server_close()
    thread.join()


def bucket(store: Store, uri: str = "s3://models/llama/8b/", **more: str) -> Bucket:
    keys = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-west-1"}
    return Bucket(uri, {**keys, "AWS_ENDPOINT_URL": store.url, **more})


def bring(store: Store, folder: Path) -> dict[str, bytes]:
    source = bucket(store)
    fetch_all(source, source.model().files, folder)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


WANTED = ("config.json", "a b+c.safetensors", "tokenizer.json")


def test_the_objects_of_the_prefix_are_fetched_over_all_pages_and_none_that_runs(store: Store, tmp_path: Path) -> None:
    assert bring(store, tmp_path) == {name: store.objects[f"llama/8b/{name}"] for name in WANTED}
    assert sum("list-type=2" in path for path, _ in store.asked) == 3


def test_a_broken_transfer_goes_on_at_its_byte(store: Store, tmp_path: Path) -> None:
    store.breaks[:] = [300_000, 200_000]
    assert bring(store, tmp_path)["a b+c.safetensors"] == store.objects["llama/8b/a b+c.safetensors"]
    assert len([asked for path, asked in store.asked if "safetensors" in path and asked]) == 2


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


def test_temporary_credentials_are_signed_too(store: Store) -> None:
    store.token = "session/+="
    assert bucket(store, AWS_SESSION_TOKEN=store.token).model().files


@pytest.mark.parametrize(
    ("uri", "environment", "message"),
    [
        ("s3://models/llama/8b", {"AWS_SECRET_ACCESS_KEY": "other"}, "the store answers 403: these credentials may not read it"),
        ("s3://models/llama/8b", {"AWS_SECRET_ACCESS_KEY": ""}, "go together"),
        ("s3://models/none", {}, "holds no *.safetensors"),
        ("s3://M/x", {}, "must be s3://bucket[/prefix]"),
        ("s3://models/llama/8b", {"AWS_ENDPOINT_URL": "minio:9000"}, "must begin with https:// or http://"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told(store: Store, uri: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(Fault) as refused:
        bucket(store, uri, **environment).model()
    assert message in refused.value.message


@pytest.mark.parametrize(
    "document", [b"", b"<a/", b"<R><Contents><Key>x</Key></Contents></R>", b"<R><IsTruncated>true</IsTruncated></R>"]
)
def test_a_list_of_another_form_is_none(document: bytes) -> None:
    with pytest.raises(Interrupted):
        listed(document)


def test_sums_are_read_as_sha256sum_writes_them() -> None:
    digest = "a" * 64
    assert checksums(f"{digest}  x.json\n{digest} *./y/z.json\n# note\nshort  w\n") == {
        "x.json": digest,
        "y/z.json": digest,
    }
