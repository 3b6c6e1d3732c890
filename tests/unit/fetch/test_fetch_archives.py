"""Protects the unpacking of a registry's layers: a later layer takes the place of an earlier one, as in an image."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.oci_registry import packed

from pagefleet_fetch import archives
from pagefleet_fetch.files import Model, RemoteFile


def unpacked(folder: Path, *layers: bytes, inside: str = "") -> dict[str, bytes]:
    """The model's files after the layers. `inside` is its folder in them."""
    (folder / archives.PACKED).mkdir(parents=True)
    names = [archives.name(str(number)) for number in range(len(layers))]
    for name, layer in zip(names, layers, strict=True):
        (folder / name).write_bytes(layer)
    packs = [RemoteFile(name, len(layer)) for name, layer in zip(names, layers, strict=True)]
    model = archives.unpack("oci://r/m", folder, Model("v1", tuple(packs), tuple(names), inside))
    return {file.name: (folder / file.name).read_bytes() for file in model.files}


def test_a_folder_takes_the_place_of_a_file_and_a_file_that_of_a_folder(tmp_path: Path) -> None:
    """The container would end with "the volume cannot be written", and be started again and again."""
    weights = {"model.safetensors": b"w"}
    first = {**weights, "a.json": b"1", "b.json/c.json": b"2"}
    found = unpacked(tmp_path, packed(first), packed({"a.json/d.json": b"3", "b.json": b"4"}))
    assert found == {**weights, "a.json/d.json": b"3", "b.json": b"4"}


@pytest.mark.parametrize("mark", ["srv/models/.wh.chat", ".wh.srv", "srv/.wh..wh..opq", "srv/models/chat/.wh..wh..opq"])
def test_a_layer_that_takes_the_model_s_folder_away_takes_its_files_away(tmp_path: Path, mark: str) -> None:
    """`RUN rm -rf /srv/models/chat` and a COPY of other weights: the engine got shards of both models."""
    at = "srv/models/chat/"
    old = {f"{at}model-00001-of-00002.safetensors": b"old", f"{at}model-00002-of-00002.safetensors": b"old"}
    new = {f"{at}model.safetensors": b"new", f"{at}config.json": b"{}"}
    both = {"model.safetensors": b"new", "config.json": b"{}"}
    assert unpacked(tmp_path / "apart", packed(old), packed({mark: b""}), packed(new), inside=at) == both
    assert unpacked(tmp_path / "at once", packed(old), packed({**new, mark: b""}), inside=at) == both


@pytest.mark.parametrize(
    "mark", ["srv/.wh.models-old", "srv/models/.wh.chat2", ".wh.", "srv/models/.wh.cha", "lib/.wh..wh..opq"]
)
def test_a_layer_that_takes_something_else_away_leaves_the_model(tmp_path: Path, mark: str) -> None:
    weights = {"srv/models/chat/model.safetensors": b"w"}
    found = unpacked(tmp_path, packed(weights), packed({mark: b""}), inside="srv/models/chat/")
    assert found == {"model.safetensors": b"w"}
