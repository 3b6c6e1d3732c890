"""The claim on a model name: which InferenceService a request to `/v1/...` with that `model` means.

The operator grants a name in `.status.modelName` to one service. A service whose `spec.model.servedName` is another one's has
the condition CONDITION with status False; a reason that ends with ELSEWHERE means that the other one is in another namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONDITION = "ModelNameOwned"
FIELD = "modelName"  # in .status: the name that was granted
TAKEN, RELEASED = "ModelNameTaken", "ModelNameReleased"
ELSEWHERE = "Elsewhere"
CLAIM_ANNOTATION = "pagefleet.io/claim-model-name"  # on an InferenceService that lost a name which nobody has any more


def served_name(service: Mapping[str, Any]) -> str:
    """Return the `model` that an InferenceService's engines answer to, "" without one. Total.

    It is `spec.model.servedName` of the stable revision: a new name in the spec counts once its revision is promoted, because engines
    of the revision before do not know it.
    """
    status = _mapping(service.get("status"))
    stable, records = status.get("stable"), status.get("revisions")
    made_from = [
        _mapping(record.get("spec"))
        for record in (records if isinstance(records, list) else ())
        if isinstance(record, Mapping) and stable and record.get("hash") == stable and record.get("spec")
    ]
    name = _mapping((made_from[0] if made_from else _mapping(service.get("spec"))).get("model")).get("servedName")
    return name if isinstance(name, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
