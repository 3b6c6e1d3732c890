"""`pagefleet-local demo` and `fleet`: bring everything up, play the scenes, take everything down."""

from __future__ import annotations

from pagefleet_local.demo.scenes import alert, burst, canary, mistakes, regression, serve

SCENES = (serve, mistakes, canary, regression, alert, burst)
IMAGES = ("operator", "gateway", "engine-cpu", "engine-cpu-smollm2")
