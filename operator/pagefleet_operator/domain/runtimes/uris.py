"""Where in a pod a model, a draft model or an adapter lies: pvc:// URIs become paths below the claim's mount."""

from __future__ import annotations

from pagefleet_operator.domain.base.revision_spec import Model

PVC, FILE = "pvc://", "file://"
MODELS = "/models"


def claims(model: Model) -> tuple[str, ...]:
    """The claims that the model, its draft model and its adapters lie on, each once."""
    sources = [model.source, model.speculation.model, *(adapter.source for adapter in model.adapters)]
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
