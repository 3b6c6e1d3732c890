"""Where in a pod a model, a draft model or an adapter lies: pvc:// URIs become paths below the claim's mount."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PVC, FILE = "pvc://", "file://"
MODELS = "/models"


def claims(snapshot: Mapping[str, Any]) -> tuple[str, ...]:
    """The claims that the model, its draft model and its adapters lie on, each once."""
    model: Mapping[str, Any] = snapshot["model"]
    sources = [
        model["source"],
        (model.get("speculation") or {}).get("model", ""),
        *(adapter["source"] for adapter in model.get("adapters") or ()),
    ]
    claims = (source.removeprefix(PVC).partition("/")[0] for source in sources if source.startswith(PVC))
    return tuple(dict.fromkeys(claims))


def mount_path(claim: str) -> str:
    return f"{MODELS}/{claim}"


def in_pod(source: str) -> str:
    """`source` as the engine takes model URIs."""
    return f"{FILE}{MODELS}/{source.removeprefix(PVC)}" if source.startswith(PVC) else source


def path_in_pod(source: str) -> str:
    """The path of a pvc:// or file:// URI."""
    return "/" + in_pod(source).removeprefix(FILE).lstrip("/")
