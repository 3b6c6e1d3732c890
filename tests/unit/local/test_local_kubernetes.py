"""Protects where the programs of the local Kubernetes come from, in their order; the official release is fetched from a server of its layout,
resumed and compared with its checksums; and what the kubelet is told follows its version."""

from __future__ import annotations

import hashlib
import platform
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pagefleet_local.assets import kubernetes, kubernetes_source, release
from pagefleet_local.assets.debian import AssetError
from pagefleet_local.assets.kubernetes import COMPONENTS, binaries, common_minor
from pagefleet_local.base.certificates import Pair
from pagefleet_local.base.paths import Layout
from pagefleet_local.node.kubelet import configuration, runtime_flags

PADDING = b"#" * (3 << 20)


def program(name: str, version: str) -> bytes:
    """A program that prints its version as Kubernetes' do, and is some megabytes long."""
    return f"#!/bin/sh\necho 'Kubernetes v{version}'\nexit 0\n# {name}\n".encode() + PADDING


def put(folder: Path, version: str, names: tuple[str, ...] = COMPONENTS) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(program(name, version))
        (folder / name).chmod(0o755)
    return folder


class Releases:
    """A server with the layout of the official downloads. `breaks` are bytes after which the next answers end. `wrong` counts answers whose
    bytes are damaged."""

    def __init__(self) -> None:
        self.files = {f"/release/v{release.VERSION}/bin/linux/{release.ARCHITECTURES[platform.machine()]}/{name}": program(name, release.VERSION)
                      for name in COMPONENTS}  # fmt: skip
        self.asked: list[tuple[str, str]] = []
        self.breaks: list[int] = []
        self.wrong = 0
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, asked = handler.path, handler.headers.get("Range", "")
        self.asked.append((path.rpartition("/")[2], asked))
        data = self.files.get(path.removesuffix(".sha256"))
        if data is None:
            handler.send_error(404)
            return
        if path.endswith(".sha256"):
            data, asked = hashlib.sha256(data).hexdigest().encode(), ""
        elif self.wrong:
            self.wrong -= 1
            data = bytes(len(data))
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start and start >= len(data):
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        end = start + self.breaks.pop(0) if self.breaks and not path.endswith(".sha256") else len(data)
        handler.wfile.write(data[start:end])


@pytest.fixture
def releases(monkeypatch: pytest.MonkeyPatch) -> Iterator[Releases]:
    served = Releases()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, format: str, *args: object) -> None:
            """Tests look at `asked`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv(release.MIRROR, served.url)
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty cache and no program of Kubernetes, where nothing is built."""
    monkeypatch.setenv("PAGEFLEET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv(kubernetes.ASSETS, raising=False)
    monkeypatch.setenv(release.MIRROR, "http://127.0.0.1:1")
    monkeypatch.setattr(kubernetes_source, "build", lambda target: put(target, kubernetes_source.VERSION))
    return tmp_path


def test_each_place_is_used_before_the_next_one(
    machine: Path, monkeypatch: pytest.MonkeyPatch, releases: Releases
) -> None:
    assert binaries().minor == 36  # the official release: nothing else is there
    assert len(releases.asked) == 2 * len(COMPONENTS)
    monkeypatch.setenv("PATH", f"{put(machine / 'path', '1.30.1')}:/usr/bin:/bin")
    assert binaries().minor == 30
    monkeypatch.setenv(kubernetes.ASSETS, str(put(machine / "assets", "1.33.0")))
    assert binaries().minor == 33
    monkeypatch.delenv(kubernetes.ASSETS)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert binaries().minor == 36  # of the cache
    assert len(releases.asked) == 2 * len(COMPONENTS)


def test_debian_s_source_is_built_where_the_release_cannot_be_reached(capsys: pytest.CaptureFixture[str]) -> None:
    assert binaries().minor == 20
    printed = " ".join(capsys.readouterr().out.split())
    assert "the official release cannot be fetched (http://127.0.0.1:1/release/v" in printed
    assert "building 1.20.2 from Debian's source package" in printed


def test_what_is_in_the_cache_is_not_fetched_again(machine: Path, releases: Releases) -> None:
    put(machine / f"cache/kubernetes-{kubernetes_source.VERSION}", kubernetes_source.VERSION)
    assert binaries().minor == 20
    assert releases.asked == []


@pytest.mark.parametrize("place", ["assets", "path"])
def test_a_place_that_lacks_a_program_is_not_mixed_with_another(
    machine: Path, monkeypatch: pytest.MonkeyPatch, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    some = put(machine / place, "1.33.0", COMPONENTS[:1])
    monkeypatch.setenv(
        kubernetes.ASSETS if place == "assets" else "PATH", f"{some}" if place == "assets" else f"{some}:/usr/bin:/bin"
    )
    assert binaries().minor == 20
    assert (f"{kubernetes.ASSETS}={some} lacks kube-controller-manager" in capsys.readouterr().out) is (
        place == "assets"
    )
    assert binaries(COMPONENTS[:1]).minor == 33


def test_a_broken_transfer_goes_on_in_the_same_run_and_in_the_next_one(releases: Releases) -> None:
    releases.breaks[:] = [1 << 20]
    release.fetch(COMPONENTS[:2])
    first = COMPONENTS[0]
    assert [asked for name, asked in releases.asked if name == first] == ["", f"bytes={1 << 20}-"]
    assert (release.folder() / first).read_bytes() == program(first, release.VERSION)


def test_what_has_arrived_is_kept_for_the_next_run(releases: Releases) -> None:
    releases.breaks[:] = [2 << 20, *[0] * release.TRIES]
    with pytest.raises(release.Unreachable, match="what has arrived is kept"):
        release.fetch(COMPONENTS)
    assert not release.folder().exists()
    releases.asked.clear()
    release.fetch(COMPONENTS)
    assert releases.asked[1] == (COMPONENTS[0], f"bytes={2 << 20}-")


def test_wrong_bytes_are_fetched_once_more_and_then_refused(releases: Releases) -> None:
    releases.wrong = 1
    release.fetch(COMPONENTS[:1])
    assert (release.folder() / COMPONENTS[0]).read_bytes() == program(COMPONENTS[0], release.VERSION)


def test_bytes_that_stay_wrong_are_no_program_and_nothing_else_is_built(releases: Releases) -> None:
    releases.wrong = 2
    with pytest.raises(AssetError, match=r"arrives with the SHA-256 [0-9a-f]{64}, and [0-9a-f]{64} is told beside it"):
        binaries()
    assert not release.folder().exists()


def test_a_version_that_is_too_old_is_refused_by_name(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kubernetes.ASSETS, str(put(machine / "assets", "1.19.16")))
    with pytest.raises(
        AssetError, match=r"Kubernetes 1\.19 is too old: 1\.20 or newer is needed; set KUBEBUILDER_ASSETS"
    ):
        binaries()


def test_programs_of_several_versions_are_refused() -> None:
    assert common_minor({"kube-apiserver": 33, "kubelet": 33}) == 33
    with pytest.raises(AssetError, match=r"several versions \(kube-apiserver 1\.33, kubelet 1\.20\)"):
        common_minor({"kube-apiserver": 33, "kubelet": 20})


LAYOUT, PAIR = Layout(), Pair(Path("/c"), Path("/k"))


@pytest.mark.parametrize(
    ("minor", "cgroup_v1", "flags", "extra"),
    [
        (20, True, ["--container-runtime", "--container-runtime-endpoint"], set()),
        (23, True, ["--container-runtime", "--container-runtime-endpoint"], set()),
        (24, True, ["--container-runtime-endpoint"], set()),
        (26, False, ["--container-runtime-endpoint"], set()),
        (27, True, [], {"containerRuntimeEndpoint"}),
        (30, True, [], {"containerRuntimeEndpoint"}),
        (31, True, [], {"containerRuntimeEndpoint", "failCgroupV1"}),
        (31, False, [], {"containerRuntimeEndpoint"}),
        (37, True, [], {"containerRuntimeEndpoint", "failCgroupV1"}),
        (37, False, [], {"containerRuntimeEndpoint"}),
    ],
)
def test_what_the_kubelet_is_told_follows_its_version(
    minor: int, cgroup_v1: bool, flags: list[str], extra: set[str]
) -> None:
    assert [flag.partition("=")[0] for flag in runtime_flags(LAYOUT, minor)] == flags
    oldest = configuration(LAYOUT, Path("/ca"), PAIR, 20, cgroup_v1=False)
    told = configuration(LAYOUT, Path("/ca"), PAIR, minor, cgroup_v1=cgroup_v1)
    assert set(told) - set(oldest) == extra
    assert {name: told[name] for name in oldest} == oldest
    assert told.get("failCgroupV1", False) is False
    endpoints = [
        told.get("containerRuntimeEndpoint", ""),
        *(flag.partition("=")[2] for flag in runtime_flags(LAYOUT, minor)),
    ]
    assert f"unix://{LAYOUT.containerd_socket}" in endpoints
