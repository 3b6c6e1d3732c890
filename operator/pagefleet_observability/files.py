"""The files under manifests/monitoring that are written from this package, as text by their path."""

from __future__ import annotations

import json
from typing import Any

import yaml

from pagefleet_observability import alerts, recordings
from pagefleet_observability.dashboards import DASHBOARDS
from pagefleet_observability.rule import RUNBOOKS, Alert

GROUPS = (recordings.REQUEST_RULES, recordings.ENGINE_RULES, alerts.REVISIONS, alerts.SERVICES, alerts.SYSTEM)
ALERTS = tuple(rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert))
HEADER = "# Made by `python -m pagefleet_observability` from operator/pagefleet_observability; edit that.\n"


def files(runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Path below manifests/monitoring -> content. `runbooks`: where docs/runbooks.md is to be read."""
    groups = {"groups": [group.document(runbooks) for group in GROUPS]}
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "pagefleet", "labels": {"app.kubernetes.io/part-of": "pagefleet"}},
        "spec": groups,
    }
    boards = {
        f"dashboards/{one.name}.json": json.dumps(one.document(), indent=1, ensure_ascii=False) + "\n"
        for one in DASHBOARDS
    }
    return {"rules.yaml": _yaml(groups), "operator/prometheus-rule.yaml": _yaml(rule), **boards}


def _yaml(document: dict[str, Any]) -> str:
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=160, allow_unicode=True)
