"""`python -m pagefleet_operator.crd [--also v1beta1]`: prints the CustomResourceDefinition made from the schema and the
rules. With `--also` a second version is served beside the one that is stored: the next version's name can be taken up by
users while this operator still works by the old one. Both have one schema, so the API server converts by the name alone."""

from __future__ import annotations

import copy
import re
import sys
from typing import Any

import yaml

from pagefleet_contract.names import GROUP, KIND, PLURAL, VERSION
from pagefleet_operator.domain.spec.rules.check import RULES
from pagefleet_operator.domain.spec.rules.nodes import NAME_RULES
from pagefleet_operator.domain.spec.rules.traffic import OWN_FALLBACK, OWN_FALLBACK_CEL
from pagefleet_operator.domain.spec.schema.fields import OPEN, Schema, array, integer, keyed, record, text
from pagefleet_operator.domain.spec.schema.spec import SPEC

HEADER = """\
# Made by `python -m pagefleet_operator.crd` from schema/ and rules/ of operator/pagefleet_operator/domain/spec; edit those.
# kubectl refuses x-kubernetes-validations against API servers older than 1.25: apply with --validate=false there, and
# the operator evaluates the same rules itself.
"""


def _number(description: str) -> Schema:
    return {"type": "number", "description": description}


def _time(description: str) -> Schema:
    return {"type": "string", "format": "date-time", "description": description}


def _object(description: str) -> Schema:
    return {"type": "object", "description": description, **OPEN}


CONDITION = record(
    "A condition, as in metav1.",
    {
        "type": text(
            "Ready, Progressing, Analysed, RolledBack, Regressed, Guarded, Scaling, Degraded; where they apply SLOMet, WithinBudget, CapacityAsPlanned, RouteAccepted and others."
        ),
        "status": text("Whether the condition holds: True, False or Unknown.", longest=16),
        "reason": text("The reason for the status in one CamelCase word."),
        "message": text("The details in words, for people.", longest=32768),
        "lastTransitionTime": _time("When the status last changed."),
        "observedGeneration": integer("The generation it was computed for.", 0, 1 << 62),
    },
    ("type", "status"),
)

STATUS = record(
    "What runs. Written by the operator; read by the gateway (traffic, canary) and by people.",
    {
        "observedGeneration": integer("The generation the status is about.", 0, 1 << 62),
        "stable": text("The revision that serves, a canary apart."),
        "canary": text("The revision that is being rolled out."),
        "traffic": array(
            "Weights, which sum to 100.",
            record(
                "A weight.",
                {
                    "revision": text("The hash of the revision."),
                    "weight": integer("The percentage of requests that it gets.", 0, 100),
                },
                ("revision", "weight"),
            ),
            8,
        ),
        "rollout": _object("Phase, step, since when, and the latest verdict with its numbers."),
        "revisions": array("Revisions in use and the latest others, with their spec.", _object("A revision."), 64),
        "rejected": array("Revisions that were rolled back, and on what evidence.", _object("A rejection."), 64),
        "conditions": keyed("For people and kubectl wait.", "type", CONDITION, 32),
        "decisions": array("The latest decisions with their numbers.", _object("A decision."), 64),
        "alerts": array("Alerts received for this service.", _object("An alert."), 64),
        "scaling": array("What the autoscaler remembers between two decisions.", _object("A revision's."), 64),
        "route": _object("The HTTPRoute of provider GatewayAPI that follows this status, with its backend."),
        "modelName": text("The served name that this service owns; read by the gateway.", longest=253),
        "action": _object("The outcome of the last annotation pagefleet.io/action: id, outcome, message."),
        "mirror": record(
            "The revision that gets copies of requests; read by the gateway.",
            {
                "revision": text("The hash of the revision."),
                "percent": _number("The percentage of requests that is mirrored."),
            },
        ),
        "previous": record(
            "The revision that served before the stable: the way back.",
            {
                "revision": text("The hash of the revision."),
                "since": _time("When it stopped being the stable revision."),
            },
        ),
        "baseline": array(
            "Latencies of the previous and of the stable revision, for the watch.", _object("A histogram."), 160
        ),
        "watch": _object("The evidence against the stable revision in normal operation, while there is some."),
        "draining": array("Revisions that have lost their traffic.", _object("A revision, and since when."), 64),
        "spares": _object("Warm spares of the stable revision: how many are desired, asleep and awake."),
        "slo": _object("The error budgets of spec.slo: what is left, how fast it is used, and the counts by day."),
        "spending": record(
            "The cost of the month, the budget of spec.cost.budget, and what is given up for it; `shed` is read by the gateway.",
            {
                "shed": array(
                    "Classes of requests that are refused.", text("A name of traffic.priorities.", longest=63), 16
                )
            },
            **OPEN,
        ),
        "capacityPlan": _object("The numbers of spec.capacityPlan beside what is measured of each revision in use."),
        "replicas": integer("Ready replicas of all revisions.", 0, 100000),
        "selector": text("The label selector of the pods, for the scale subresource.", longest=1024),
    },
)

COLUMNS = (
    ("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
    ("Stable", "string", ".status.stable"),
    ("Canary", "string", ".status.canary"),
    ("Weight", "string", ".status.traffic[1].weight"),
    ("Verdict", "string", ".status.rollout.verdict.outcome"),
    ("Guarded", "string", ".status.conditions[?(@.type=='Guarded')].status"),
    ("SLO", "string", ".status.slo.left"),
    ("Replicas", "integer", ".status.replicas"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def definition(*also: str) -> dict[str, Any]:
    """`also`: further versions that are served, not stored."""
    spec = copy.deepcopy(SPEC)
    for rule in RULES:
        part = spec
        for name in rule.at:
            part = part["properties"][name]
        part.setdefault("x-kubernetes-validations", []).append(
            {"rule": rule.cel, "message": f"{rule.field}: {rule.message}"}
        )
    root = record(
        "A fleet of replicas that serve one model, and how new revisions of it take over.",
        {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}, "spec": spec,
         "status": STATUS},
        ("spec",),
    )  # fmt: skip
    root["x-kubernetes-validations"] = [
        {"rule": OWN_FALLBACK_CEL, "message": OWN_FALLBACK},
        *({"rule": rule.cel, "message": f"{rule.field}: {rule.message}"} for rule in NAME_RULES),
    ]
    names = {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": "inferenceservice",
             "shortNames": ["isvc"], "categories": ["pagefleet"]}  # fmt: skip
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": root},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.scaling.min",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [{"name": n, "type": t, "jsonPath": p} for n, t, p in COLUMNS],
    }
    others = [{**copy.deepcopy(version), "name": name, "storage": False} for name in also]
    converted = {"conversion": {"strategy": "None"}} if others else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version, *others], **converted},
    }


def rendered(*also: str) -> str:
    return HEADER + yaml.safe_dump(definition(*also), sort_keys=False, width=110, allow_unicode=True)


def main(words: list[str]) -> int:
    """Returns the exit status."""
    also = words[1::2]
    right = len(words) == 2 * len(also) and all(word == "--also" for word in words[::2])
    if not right or any(
        not re.fullmatch(r"v[1-9]\d*((alpha|beta)[1-9]\d*)?", name) or name == VERSION for name in also
    ):
        sys.stderr.write(f"usage: [--also VERSION]...: versions are like v1beta1, and not {VERSION}\n")
        return 2
    sys.stdout.write(rendered(*also))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
