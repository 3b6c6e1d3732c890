"""Chooses the engine that serves a configuration: the CPU's, or the device's on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pagefleet_engine.core.requests import EngineConfig
from pagefleet_engine.model.checkpoint.errors import ModelError
from pagefleet_engine.runner.cpu.engine import Engine

if TYPE_CHECKING:
    from pagefleet_engine.runner.device.engine import DeviceEngine

    AnyEngine = Engine | DeviceEngine


def start(config: EngineConfig) -> AnyEngine:
    """Start the engine. Raises ModelError when the model cannot be served with this configuration."""
    if config.device == "cpu":
        return Engine(config)
    if not torch.cuda.is_available():
        raise ModelError("spec.resources.accelerator", "torch sees no GPU: ask for one, or use --device=cpu")
    from pagefleet_engine.runner.device.engine import DeviceEngine  # imports Triton

    return DeviceEngine(config, torch.device("cuda", 0))
