"""The LoRA adapters that an engine has loaded, by name and version, and their part in a step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from pagefleet_engine.core.requests import EngineRequest
from pagefleet_engine.core.work import Work
from pagefleet_engine.model.adapters import Adapter, Applied

Name = TypeVar("Name", str, int)


class Adapters:
    """Holds at most `limit` adapters. A name means its newest version; a request keeps the version that it began with.

    `read` reads an adapter from a folder and raises ValueError. Versions have numbers, which are never used again.
    """

    def __init__(self, limit: int, read: Callable[[str], Adapter[Any]]) -> None:
        self._limit, self._read, self._count = limit, read, 0
        self._versions: dict[str, str] = {}
        self._loaded: dict[str, Adapter[Any]] = {}

    def versioned(self, request: EngineRequest) -> EngineRequest:
        """Raises ValueError when the request's adapter is not loaded."""
        return replace(request, adapter=self.version(request.adapter))

    def version(self, name: str | None) -> str | None:
        """Return an adapter's newest version, None for no adapter. Raises ValueError when it is not loaded."""
        if name is not None and name not in self._versions:
            raise ValueError(f"there is no adapter {name!r}")
        return None if name is None else self._versions[name]

    def load(self, name: str, path: str, used: Collection[str]) -> None:
        """Raises ValueError when it cannot be used. `used`: versions that open requests need."""
        if name not in self._versions and len(self._versions) >= self._limit:
            raise ValueError(f"{self._limit} adapters are loaded already: unload one")
        adapter = self._read(path)
        self._count += 1
        self._versions[name] = version = f"{name}#{self._count}"
        self._loaded[version] = adapter
        self._drop(used)

    def unload(self, name: str, used: Collection[str]) -> None:
        """Raises ValueError when it is not loaded, or in use."""
        if name not in self._versions:
            raise ValueError(f"there is no adapter {name!r}")
        if self._versions[name] in used:
            raise ValueError(f"the adapter {name!r} is in use")
        del self._versions[name]
        self._drop(used)

    def _drop(self, used: Collection[str]) -> None:
        """Forget the versions that no name means and no open request needs."""
        needed = {*self._versions.values(), *used}
        self._loaded = {one: loaded for one, loaded in self._loaded.items() if one in needed}

    def numbered(self) -> dict[int, Adapter[Any]]:
        """Return the adapters that are held, by the numbers of their versions."""
        return {number_of(version): adapter for version, adapter in self._loaded.items()}

    def applied(self, work_items: Sequence[Work]) -> Applied | None:
        """Return the changes that the work items' adapters make to a step on the CPU; None when none of them has an adapter."""
        versions = [work.sequence.request.adapter for work in work_items]
        rows = changed_rows(versions, [work.count for work in work_items])
        if not rows:
            return None
        return Applied([(self._loaded[version], torch.tensor(own)) for version, own in rows.items()])


def number_of(version: str | None) -> int:
    """Return the number of a version, -1 for no adapter."""
    return -1 if version is None else int(version.rpartition("#")[2])


def changed_rows(adapters: Sequence[Name | None], counts: Sequence[int]) -> dict[Name, list[int]]:
    """Return the rows that each adapter changes. `adapters` and `counts` are those of one sequence after the other."""
    rows: dict[Name, list[int]] = {}
    begin = 0
    for adapter, count in zip(adapters, counts, strict=True):
        if adapter is not None:
            rows.setdefault(adapter, []).extend(range(begin, begin + count))
        begin += count
    return rows
