"""LoRA adapters on a device: their parts lie beside the weights; steps that need one run outside of the graphs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from pagefleet_engine.core.requests import EngineConfig, EngineRequest
from pagefleet_engine.core.work import Work
from pagefleet_engine.model import adapters
from pagefleet_engine.model.adapters import Adapter, Applied, Part
from pagefleet_engine.runner.device.ranks.rank import Rank


class Adapters:
    """An adapter's name stands for its newest version; requests keep the one that they began with."""

    def __init__(self, config: EngineConfig, rank: Rank) -> None:
        self._most, self._rank, self._count = config.max_adapters, rank, 0
        self._versions: dict[str, str] = {}
        self._loaded: dict[str, Adapter] = {}

    def versioned(self, request: EngineRequest) -> EngineRequest:
        """Raises ValueError when its adapter is not loaded."""
        if request.adapter is None:
            return request
        if request.adapter not in self._versions:
            raise ValueError(f"there is no adapter {request.adapter!r}")
        return replace(request, adapter=self._versions[request.adapter])

    def load(self, name: str, path: str, used: Collection[str]) -> None:
        if self._rank.shard.size > 1:
            raise ValueError("adapters are not supported on several GPUs")
        if name not in self._versions and len(self._versions) >= self._most:
            raise ValueError(f"{self._most} adapters are loaded already: unload one")
        found = self._there(adapters.load(Path(path), self._rank.model_config))
        self._count += 1
        self._versions[name] = version = f"{name}#{self._count}"
        needed = {*self._versions.values(), *used}
        self._loaded = {one: kept for one, kept in self._loaded.items() if one in needed} | {version: found}

    def unload(self, name: str, used: Collection[str]) -> None:
        if name not in self._versions:
            raise ValueError(f"there is no adapter {name!r}")
        if self._versions[name] in used:
            raise ValueError(f"the adapter {name!r} is in use")
        del self._loaded[self._versions.pop(name)]

    def applied(self, works: Sequence[Work]) -> Applied | None:
        """What the works' adapters change; None when there are none among them."""
        rows: dict[str, list[int]] = {}
        begin = 0
        for work in works:
            if (version := work.sequence.request.adapter) is not None:
                rows.setdefault(version, []).extend(range(begin, begin + work.count))
            begin += work.count
        if not rows:
            return None
        device = self._rank.device
        return Applied([(self._loaded[one], torch.tensor(own, device=device)) for one, own in rows.items()])

    def _there(self, adapter: Adapter) -> Adapter:
        model = self._rank.executor.model

        def part(one: Part) -> Part:
            return Part(one.down.to(model.device, model.dtype), one.up.to(model.device, model.dtype), one.begin)

        return Adapter({place: tuple(part(one) for one in parts) for place, parts in adapter.parts.items()})
