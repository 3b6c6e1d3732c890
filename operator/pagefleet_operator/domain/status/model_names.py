"""The services that have the same `spec.model.servedName` as one service. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pagefleet_contract import model_name


@dataclass(frozen=True)
class Rival:
    """Another service with the same served name. `lost`: it has the condition, so it waits for no name."""

    namespace: str
    name: str
    created: str  # creationTimestamp
    owns: bool = False
    lost: bool = False


@dataclass(frozen=True)
class NameReading:
    """The claims on one service's served name. `claims`: the name in the service's own annotation."""

    created: str = ""
    claims: str = ""
    rivals: tuple[Rival, ...] = ()


def reading_of(service: Mapping[str, Any], name: str, others: Iterable[Mapping[str, Any] | None]) -> NameReading:
    """Return the claims on the service's served name `name`, which `others` have too. Total."""
    claims = str((service["metadata"].get("annotations") or {}).get(model_name.CLAIM_ANNOTATION, ""))
    rivals = tuple(_rival(other, name) for other in others if other is not None)
    return NameReading(_created(service), claims, rivals)


def _rival(service: Mapping[str, Any], name: str) -> Rival:
    status = service.get("status")
    status = status if isinstance(status, Mapping) else {}
    return Rival(
        service["metadata"].get("namespace", ""),
        service["metadata"]["name"],
        _created(service),
        owns=status.get(model_name.FIELD) == name,
        lost=any(_lost(condition) for condition in status.get("conditions") or ()),
    )


def _lost(condition: Any) -> bool:
    return (
        isinstance(condition, Mapping)
        and condition.get("type") == model_name.CONDITION
        and condition.get("status") == "False"
    )


def _created(service: Mapping[str, Any]) -> str:
    return str(service["metadata"].get("creationTimestamp") or "")
