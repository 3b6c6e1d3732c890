"""Every rule that crosses fields, and the check of a spec against all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagefleet_operator.domain.spec.rules.accelerator import ACCELERATOR_RULES
from pagefleet_operator.domain.spec.rules.capacity_plan import CAPACITY_PLAN_RULES
from pagefleet_operator.domain.spec.rules.disaggregation import DISAGGREGATION_RULES
from pagefleet_operator.domain.spec.rules.evaluate import violations
from pagefleet_operator.domain.spec.rules.guard import GUARD_RULES
from pagefleet_operator.domain.spec.rules.model import MODEL_RULES
from pagefleet_operator.domain.spec.rules.nodes import NODE_RULES
from pagefleet_operator.domain.spec.rules.pods import POD_RULES
from pagefleet_operator.domain.spec.rules.rollout import ROLLOUT_RULES
from pagefleet_operator.domain.spec.rules.runtime import RUNTIME_RULES
from pagefleet_operator.domain.spec.rules.scaling import SCALING_RULES
from pagefleet_operator.domain.spec.rules.slo import SLO_RULES
from pagefleet_operator.domain.spec.rules.traffic import TRAFFIC_RULES
from pagefleet_operator.domain.spec.schema.structure import SpecError

RULES = (
    *MODEL_RULES,
    *POD_RULES,
    *SCALING_RULES,
    *ROLLOUT_RULES,
    *GUARD_RULES,
    *TRAFFIC_RULES,
    *ACCELERATOR_RULES,
    *RUNTIME_RULES,
    *NODE_RULES,
    *DISAGGREGATION_RULES,
    *SLO_RULES,
    *CAPACITY_PLAN_RULES,
)


def check(spec: Mapping[str, Any]) -> list[SpecError]:
    """Errors of a spec whose structure holds and whose defaults are filled in."""
    return list(violations(RULES, spec))
