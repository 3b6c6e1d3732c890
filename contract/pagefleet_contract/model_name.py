"""The claim on a model name: which InferenceService a request to `/v1/...` with that `model` means.

The operator grants a name in `.status.modelName` to one service. A service whose `spec.model.servedName` is another one's has
the condition CONDITION with status False; a reason that ends with ELSEWHERE means that the other one is in another namespace.
"""

from __future__ import annotations

CONDITION = "ModelNameOwned"
FIELD = "modelName"  # in .status: the name that was granted
TAKEN, RELEASED = "ModelNameTaken", "ModelNameReleased"
ELSEWHERE = "Elsewhere"
CLAIM_ANNOTATION = "pagefleet.io/claim-model-name"  # on an InferenceService that lost a name which nobody has any more
