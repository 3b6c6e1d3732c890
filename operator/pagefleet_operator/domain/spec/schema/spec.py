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
from pagefleet_operator.domain.spec.schema.patterns import LABEL_NAME, LABEL_VALUE, RESOURCE_NAME
from pagefleet_operator.domain.spec.schema.pod import POD
from pagefleet_operator.domain.spec.schema.rollout import ROLLOUT
from pagefleet_operator.domain.spec.schema.scaling import CAPACITY_PLAN, SCALING
from pagefleet_operator.domain.spec.schema.slo import OWNER_SCHEMA, SLO_SCHEMA
from pagefleet_operator.domain.spec.schema.traffic import TRAFFIC

HUGE_PAGES = ("2Mi", "1Gi")

RESOURCES = record(
    "What a pod needs of a node: a replica, or one of its spec.engine.nodes.",
    {
        "accelerator": record(
            "The extended resource of the accelerators that a pod gets.",
            {
                "name": text("The name of the resource, such as nvidia.com/gpu.", pattern=RESOURCE_NAME),
                "count": integer("How many for each pod: they share the model.", 1, 64, default=1),
            },
            ("name",),
        ),
        "cpu": text("CPU request; also the engine's threads, rounded up.", pattern=QUANTITY, longest=16, default="1"),
        "memory": text(
            "The memory that a pod requests, which is its limit too.", pattern=QUANTITY, longest=16, default="4Gi"
        ),
        "sharedMemory": text(
            "Size of /dev/shm, which counts as memory. When omitted, engines whose processes share buffers have one "
            "without a size of its own.",
            pattern=QUANTITY,
            longest=16,
        ),
        "hugePages": record(
            "Memory in huge pages by the size of a page, beside `memory`; each is mounted at /hugepages-SIZE.",
            {
                size: text(f"Memory in pages of {size}, requested and limited.", pattern=QUANTITY, longest=16)
                for size in HUGE_PAGES
            },
        ),
    },
)

# Open: a newer API server's tolerations have fields that are not known here.
TOLERATION = record(
    "A core/v1 Toleration.",
    {
        "key": text("The taint's key; every taint when omitted, with operator Exists."),
        "operator": choice("How the taint's value is compared. Equal when omitted.", ("Equal", "Exists", "Gt", "Lt")),
        "value": text("The value that the taint has.", pattern=LABEL_VALUE, longest=63),
        "effect": choice(
            "The effect of the taint. Every effect when omitted.", ("NoSchedule", "PreferNoSchedule", "NoExecute")
        ),
        "tolerationSeconds": {
            "type": "integer",
            "description": "How long NoExecute is tolerated; for ever when omitted.",
        },
    },
    **OPEN,
)

SPREAD_CONSTRAINT = record(
    "A core/v1 TopologySpreadConstraint. The operator adds the labelSelector, of the revision's pods.",
    {
        "maxSkew": integer("Most replicas that one domain may have more than another.", 1, 1000),
        "topologyKey": text("The label of nodes whose values are the domains.", pattern=LABEL_NAME, longest=317),
        "whenUnsatisfiable": choice(
            "Whether a replica that would break it waits, or runs all the same.", ("DoNotSchedule", "ScheduleAnyway")
        ),
        "minDomains": integer("Fewer domains than these count as one that is empty.", 1, 1000),
        "nodeAffinityPolicy": choice(
            "Whether only nodes that nodeSelector allows count; Honor when omitted.", ("Honor", "Ignore")
        ),
        "nodeTaintsPolicy": choice(
            "Whether only nodes whose taints are tolerated count; Ignore when omitted.", ("Honor", "Ignore")
        ),
    },
    ("maxSkew", "topologyKey", "whenUnsatisfiable"),
)

PLACEMENT = record(
    "The nodes that replicas may run on.",
    {
        "nodeSelector": table("Labels a node must have.", {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE}),
        "tolerations": array("The taints of nodes that pods tolerate.", TOLERATION, 32),
        "topologySpread": {
            "type": "boolean",
            "description": "Spread replicas over nodes as far as that is possible, where topologySpreadConstraints is empty.",
            "default": True,
        },
        "topologySpreadConstraints": array("How replicas are spread over zones and nodes.", SPREAD_CONSTRAINT, 8),
    },
)

SPEC = record(
    "The service that should run: its model, engine, replicas, rollouts and traffic.",
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
        "capacityPlan": CAPACITY_PLAN,
        "owner": OWNER_SCHEMA,
    },
    ("model",),
)
