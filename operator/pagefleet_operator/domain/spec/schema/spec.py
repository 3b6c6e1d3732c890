"""The structure of `.spec`: types, enums, bounds, defaults, descriptions. One source for the CRD and for the operator's
own check of objects that were stored without it. What crosses fields is in `rules`, what is the operator's own to write in
`support`.
"""

from __future__ import annotations

from pagefleet_contract.quantity import QUANTITY
from pagefleet_operator.domain.spec.schema.cost import COST
from pagefleet_operator.domain.spec.schema.engine import ENGINE, MODEL
from pagefleet_operator.domain.spec.schema.fields import (
    OPEN,
    array,
    choice,
    integer,
    record,
    table,
    text,
)
from pagefleet_operator.domain.spec.schema.patterns import LABEL_VALUE, RESOURCE_NAME
from pagefleet_operator.domain.spec.schema.pod import POD
from pagefleet_operator.domain.spec.schema.rollout import ROLLOUT
from pagefleet_operator.domain.spec.schema.scaling import SCALING
from pagefleet_operator.domain.spec.schema.slo import OWNER_SCHEMA, SLO_SCHEMA
from pagefleet_operator.domain.spec.schema.traffic import TRAFFIC

RESOURCES = record(
    "What a pod needs of a node: a replica, or one of its spec.engine.nodes.",
    {
        "accelerator": record(
            "An extended resource.",
            {
                "name": text("Its name, such as nvidia.com/gpu.", pattern=RESOURCE_NAME),
                "count": integer("How many for each pod: they share the model.", 1, 64, default=1),
            },
            ("name",),
        ),
        "cpu": text("CPU request; also the engine's threads, rounded up.", pattern=QUANTITY, longest=16, default="1"),
        "memory": text("Memory request and limit.", pattern=QUANTITY, longest=16, default="4Gi"),
    },
)

# Open: a newer API server's tolerations have fields that are not known here.
TOLERATION = record(
    "A core/v1 Toleration.",
    {
        "key": text("The taint's key; every taint when omitted, with operator Exists."),
        "operator": choice("Equal when omitted.", ("Equal", "Exists", "Gt", "Lt")),
        "value": text("The taint's value.", pattern=LABEL_VALUE, longest=63),
        "effect": choice("Every effect when omitted.", ("NoSchedule", "PreferNoSchedule", "NoExecute")),
        "tolerationSeconds": {
            "type": "integer",
            "description": "How long NoExecute is tolerated; for ever when omitted.",
        },
    },
    **OPEN,
)

PLACEMENT = record(
    "Where replicas may run.",
    {
        "nodeSelector": table("Labels a node must have.", {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE}),
        "tolerations": array("Taints to tolerate.", TOLERATION, 32),
        "topologySpread": {"type": "boolean", "description": "Spread replicas over nodes.", "default": True},
    },
)

SPEC = record(
    "What should run.",
    {
        "model": MODEL,
        "engine": ENGINE,
        "resources": RESOURCES,
        "placement": PLACEMENT,
        "pod": POD,
        "scaling": SCALING,
        "rollout": ROLLOUT,
        "traffic": TRAFFIC,
        "cost": COST,
        "slo": SLO_SCHEMA,
        "owner": OWNER_SCHEMA,
    },
    ("model",),
)
