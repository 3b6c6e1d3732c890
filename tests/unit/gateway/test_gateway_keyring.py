"""The file of API keys while the gateway runs: whatever becomes of the file, requests go on with the last good keys."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from pagefleet_gateway.limits.api_keys import KeyFileError, parse
from pagefleet_gateway.limits.keyring import Keyring

KEY = "sk-one-0123456789"
FIRST = f"- {{name: one, key: {KEY}}}"


class World:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "keys.yaml"
        self.file.write_text(FIRST)
        self.registry = CollectorRegistry()
        self.keyring = Keyring(self.file, Gauge("valid", "", registry=self.registry))

    async def read(self, text: str) -> None:
        self.file.write_text(text)
        await self.keyring.renew(self.file)

    @property
    def in_force(self) -> tuple[int, bool]:
        assert self.keyring.keys is not None
        return len(self.keyring.keys), self.registry.get_sample_value("valid") == 1


@pytest.mark.parametrize(
    "text",
    [
        "- {name: one",
        "{name: one}",
        f"- {{name: 2026-02-30, key: {KEY}}}",  # YAML's date
        f"- {{name: one, key: {KEY}, tokensPerMinute: !!int many}}",
        f"- {{name: one, key: {KEY}, tokensPerMinute: {'9' * 5000}}}",
        "[" * 5000,
    ],
)
async def test_a_file_that_becomes_invalid_changes_nothing(tmp_path: Path, text: str) -> None:
    with pytest.raises(KeyFileError):
        parse(text)
    world = World(tmp_path)
    await world.read(text)
    assert world.in_force == (1, False)
    await world.read(f"{FIRST}\n- {{name: two, key: {KEY}-two}}")
    assert world.in_force == (2, True)


async def test_a_file_that_was_away_is_valid_again_when_it_is_back_unchanged(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.file.unlink()
    await world.keyring.renew(world.file)
    assert world.in_force == (1, False)
    await world.read(FIRST)
    assert world.in_force == (1, True)


async def test_requests_go_on_while_thousands_of_keys_are_read(tmp_path: Path) -> None:
    """The gateway's one thread that picks did nothing else for seconds, and after three every request that waited got 503."""
    world = World(tmp_path)
    entries = (f"- {{name: t{n}, sha256: {hashlib.sha256(b'%d' % n).hexdigest()}}}\n" for n in range(1000))
    reading = asyncio.create_task(world.read("".join(entries)))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert world.in_force == (1000, True) and turns > 10
