"""Protects what the names, manifests and pull secrets of registries are read as: which repository is asked, with whose credentials, and which layers hold a
model. Documents of any form end in one kind of error."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_fetch.oci.credentials import credential
from pagefleet_fetch.oci.manifest import Layer, layers, of_platform
from pagefleet_fetch.oci.reference import Reference, mirrored, parse

HEX = "0123456789abcdef" * 4
DIGEST = f"sha256:{HEX}"
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["layers", "manifests", "digest", "size", "auths", "auth", "r.io", "annotations", "platform", "mediaType"]), inner, max_size=5),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("registry.example.com/team/llama", "https://registry.example.com/v2/team/llama"),
        ("registry.example.com:5000/llama:8b", "https://registry.example.com:5000/v2/llama"),
        ("localhost:5000/llama", "http://localhost:5000/v2/llama"),
        ("localhost.example.com/llama", "https://localhost.example.com/v2/llama"),
        ("llama:8b", "https://registry-1.docker.io/v2/library/llama"),
        ("team/llama", "https://registry-1.docker.io/v2/team/llama"),
    ],
)
def test_the_repository_that_is_asked(name: str, base: str) -> None:
    assert parse(f"oci://{name}@{DIGEST}").base == base
    assert parse(f"oci://{name}@{DIGEST}/a/b/").path == "a/b/"


@pytest.mark.parametrize(
    "uri",
    ["oci://r.io/m", f"oci://r.io/m@sha512:{HEX}", f"oci://r.io/m@{DIGEST}/../x", f"oci://r.io/m@{DIGEST}/a//b", f"oci://r.io/../m@{DIGEST}",
     f"oci://r.io/M@{DIGEST}", f"oci://r.io:x/m@{DIGEST}", f"oci://r.io/m@{DIGEST}/./a"],
)  # fmt: skip
def test_a_uri_that_names_no_repository_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="oci://"):
        parse(uri)


def test_mirrors_are_those_of_the_registry_and_come_before_it() -> None:
    asked = parse(f"oci://r.io/team/m@{DIGEST}")
    found = mirrored(asked, "r.io=cache.example:5000/r, other.io=x.example, r.io=second.example")
    assert [(one.registry, one.repository) for one in found] == [
        ("cache.example:5000", "r/team/m"),
        ("second.example", "team/m"),
        ("r.io", "team/m"),
    ]
    with pytest.raises(ValueError, match="REGISTRY=HOST"):
        list(mirrored(asked, "http://cache.example"))


def secret(*keys: str) -> dict[str, Any]:
    return {"auths": {key: {"auth": base64.b64encode(f"{key}:p".encode()).decode()} for key in keys}}


@pytest.mark.parametrize(
    ("registry", "keys", "chosen"),
    [
        ("r.io", ["r.io", "other.io"], "r.io"),
        ("r.io", ["r.io", "r.io/team", "r.io/tea"], "r.io/team"),
        ("r.io", ["https://r.io/v2/"], "https"),
        ("a.r.io", ["*.r.io"], "*.r.io"),
        ("a.b.r.io", ["*.r.io", "r.io"], ""),
        ("r.io:5000", ["r.io"], ""),
        ("docker.io", ["https://index.docker.io/v1/"], "https"),
        ("evil.io", ["r.io"], ""),
    ],
)
def test_credentials_go_to_the_registry_that_they_are_for(registry: str, keys: list[str], chosen: str) -> None:
    found = credential(Reference(registry, "team/m", HEX, ""), [secret(*keys)])
    assert (found[0] if found else "") == chosen


def test_name_and_password_may_stand_by_themselves() -> None:
    known = {"auths": {"r.io": {"username": "u", "password": "p"}}}
    assert credential(Reference("r.io", "m", HEX, ""), [{}, known]) == ("u", "p")


def layer(media: str, **annotations: str) -> dict[str, Any]:
    return {"mediaType": media, "digest": DIGEST, "size": 7, "annotations": annotations}


PATH, TITLE, UNPACK = "org.cncf.model.filepath", "org.opencontainers.image.title", "io.deis.oras.content.unpack"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (layer("application/vnd.cncf.model.weight.v1.raw", **{PATH: "a/m.safetensors"}), "a/m.safetensors"),
        (layer("application/vnd.cncf.model.weight.v1.tar", **{PATH: "m.safetensors"}), ""),
        (layer("application/vnd.cncf.model.weight.config.v1.tar+gzip"), ""),
        (layer("application/vnd.cncf.model.code.v1.raw", **{PATH: "x.json"}), None),
        (layer("application/vnd.cncf.model.dataset.v1.tar"), None),
        (layer("application/vnd.kitops.modelkit.model.v1.tar"), ""),
        (layer("application/vnd.kitops.modelkit.code.v1.tar+gzip"), None),
        (layer("application/vnd.oci.image.layer.v1.tar", **{TITLE: "./m.safetensors"}), "m.safetensors"),
        (layer("application/octet-stream", **{TITLE: "m.safetensors"}), "m.safetensors"),
        (layer("application/vnd.oci.image.layer.v1.tar+gzip", **{TITLE: "models"}), ""),
        (layer("application/x", **{TITLE: "models", UNPACK: "true"}), ""),
        (layer("application/vnd.docker.image.rootfs.diff.tar.gzip"), ""),
        (layer("application/vnd.in-toto+json"), None),
    ],
)
def test_a_layer_is_a_file_an_archive_or_no_part_of_a_model(given: dict[str, Any], name: str | None) -> None:
    assert layers({"layers": [given]}) == ([] if name is None else [Layer(HEX, 7, name)])


def test_the_platform_of_this_machine_is_chosen() -> None:
    def entry(number: int, architecture: str) -> dict[str, Any]:
        return {"digest": f"sha256:{number:064}", "size": 1, "platform": {"architecture": architecture}}

    both = {"manifests": [entry(1, "arm64"), entry(2, "amd64"), entry(3, "unknown")]}
    assert of_platform(both, "x86_64") == f"{2:064}"
    assert of_platform(both, "aarch64") == f"{1:064}"
    assert of_platform({"manifests": [entry(1, "amd64"), entry(3, "unknown")]}, "riscv64") == f"{1:064}"
    with pytest.raises(ValueError, match="only for amd64, arm64"):
        of_platform(both, "riscv64")
    assert of_platform({"layers": []}, "x86_64") is None


@given(ANYTHING)
def test_documents_of_any_form_are_read_or_refused(document: Any) -> None:
    for read in (layers, lambda one: of_platform(one, "x86_64")):
        try:
            read(document)
        except ValueError:
            continue
    credential(Reference("r.io", "m", HEX, ""), [document])
