"""Protects the unpacking of a registry's layers: a later layer takes the place of an earlier one, as in an image."""

from __future__ import annotations

from pathlib import Path

from support.oci_registry import packed

from pagefleet_fetch import archives
from pagefleet_fetch.files import Model, RemoteFile


def unpacked(folder: Path, *layers: bytes) -> dict[str, bytes]:
    """The model's files after the layers."""
    (folder / archives.PACKED).mkdir(parents=True)
    names = [archives.name(str(number)) for number in range(len(layers))]
    for name, layer in zip(names, layers, strict=True):
        (folder / name).write_bytes(layer)
    packs = [RemoteFile(name, len(layer)) for name, layer in zip(names, layers, strict=True)]
    model = archives.unpack("oci://r/m", folder, Model("v1", tuple(packs), tuple(names)))
    return {file.name: (folder / file.name).read_bytes() for file in model.files}


def test_a_folder_takes_the_place_of_a_file_and_a_file_that_of_a_folder(tmp_path: Path) -> None:
    """The container would end with "the volume cannot be written", and be started again and again."""
    weights = {"model.safetensors": b"w"}
    first = {**weights, "a.json": b"1", "b.json/c.json": b"2"}
    found = unpacked(tmp_path, packed(first), packed({"a.json/d.json": b"3", "b.json": b"4"}))
    assert found == {**weights, "a.json/d.json": b"3", "b.json": b"4"}
