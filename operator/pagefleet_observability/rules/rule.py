"""A recording rule and an alert, and the form Prometheus reads them in. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

AFFECTED = "affected_revision"
OWNER = "pagefleet_service_owner"  # its labels are spec.owner
OF = "on (namespace, service)"
RUNBOOKS = "docs/runbooks.md"  # `--runbooks` replaces it with the address of your copy


class Severity(StrEnum):
    """PAGE: users are affected now. TICKET: look at it within a day."""

    PAGE = "page"
    TICKET = "ticket"


@dataclass(frozen=True)
class Recording:
    """`name` is level:metric:operations, as Prometheus' guide has it."""

    name: str
    expr: str

    def document(self, _: str) -> dict[str, Any]:
        return {"record": self.name, "expr": self.expr}


@dataclass(frozen=True)
class Alert:
    """`hold`: how long `expr` must hold.

    A page with the labels namespace, service and revision may roll a canary back. Only an alert that `compares` a canary
    with the stable revision has these labels. The revision of any other alert is its label AFFECTED. The label `passing` is
    told in the summary alone: its value may change while the alert is the same one.
    """

    name: str
    severity: Severity
    expr: str
    hold: str
    summary: str
    description: str
    compares: bool = False
    passing: str = ""

    @property
    def anchor(self) -> str:
        """The anchor of its section in docs/runbooks.md, as GitHub and mkdocs derive it from the heading."""
        return self.name.lower()

    @property
    def of_service(self) -> bool:
        return "$labels.service" in self.summary

    def document(self, runbooks: str) -> dict[str, Any]:
        document: dict[str, Any] = {"alert": self.name, "expr": owned(self.expr) if self.of_service else self.expr}
        if self.hold:
            document["for"] = self.hold
        document["labels"] = {"severity": self.severity.value}
        if "$labels.revision" in self.summary and not self.compares:
            # An empty value removes the label. The template has the labels from before.
            document["labels"] |= {AFFECTED: "{{ $labels.revision }}", "revision": ""}
        if self.passing:
            document["labels"][self.passing] = ""
        document["annotations"] = {
            "summary": self.summary,
            "description": self.description,
            "runbook_url": f"{runbooks}#{self.anchor}",
        }
        if self.of_service:
            # The label `team` stays, to route by. An edited contact must not make another alert of the same one.
            document["labels"] |= {"contact": "", "runbook": ""}
            document["annotations"] |= {f"owner_{name}": f"{{{{ $labels.{name} }}}}" for name in ("contact", "runbook")}
        return document


def owned(expr: str) -> str:
    """`expr` with the service's owner as labels, where it has one. A service without an owner keeps its alert as it is."""
    owner = f"topk by (namespace, service) (1, {OWNER})"
    return f"({expr}) * {OF} group_left (team, contact, runbook) {owner} or ({expr}) unless {OF} {OWNER}"


@dataclass(frozen=True)
class Group:
    name: str
    rules: tuple[Recording | Alert, ...]

    def document(self, runbooks: str = RUNBOOKS) -> dict[str, Any]:
        return {"name": self.name, "rules": [rule.document(runbooks) for rule in self.rules]}
