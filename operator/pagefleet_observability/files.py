"""The files under manifests/monitoring that are written from this package, as text by their path; and how such files are
written, or compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pagefleet_observability.dashboards import DASHBOARDS
from pagefleet_observability.rules import accelerators, alerts, canaries, recordings, system
from pagefleet_observability.rules.rule import RUNBOOKS, Alert

GROUPS = (
    recordings.REQUEST_RULES,
    recordings.OBJECTIVE_RULES,
    recordings.ENGINE_RULES,
    accelerators.ACCELERATORS,
    canaries.CANARIES,
    alerts.REVISIONS,
    alerts.SERVICES,
    system.SYSTEM,
)
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


def settle(folder: Path, texts: Mapping[str, str], program: str, *, check: bool) -> int:
    """Write `texts` by their paths below `folder`; with `check` write nothing, name those that differ and return 1."""
    stale: list[str] = []
    for name, text in texts.items():
        path = folder / name
        if check:
            if not path.exists() or path.read_text() != text:
                stale.append(str(path))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in stale:
        sys.stderr.write(f"{name} is not what its source makes; run python -m {program}\n")
    return 1 if stale else 0


def _yaml(document: dict[str, Any]) -> str:
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=160, allow_unicode=True)
