"""`pagefleet-local demo` and `fleet`: bring everything up, play the scenes, take everything down."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pagefleet_local import images
from pagefleet_local.cleanup import down, leftovers
from pagefleet_local.demo.load import Load
from pagefleet_local.demo.narration import Narrator, SceneFailed
from pagefleet_local.demo.scenes import alert, burst, canary, mistakes, regression, serve
from pagefleet_local.demo.stage import NAMESPACE, Stage
from pagefleet_local.fleet.install import Fleet, install
from pagefleet_local.fleet.kubectl import Kubectl, KubectlError, until
from pagefleet_local.up import Options, up

SCENES = (serve, mistakes, canary, regression, alert, burst)
IMAGES = ("operator", "gateway", "engine-cpu", "engine-cpu-smollm2")
