"""Where an engine pod names the Secret of its API key: the operator writes it, the gateway reads it."""

from __future__ import annotations

VOLUME = "api-keys"  # our engine: the volume with the Secret; its only item is the key's name
VARIABLES = ("PAGEFLEET_API_KEY", "VLLM_API_KEY", "API_KEY")  # other engines: a variable from the Secret
