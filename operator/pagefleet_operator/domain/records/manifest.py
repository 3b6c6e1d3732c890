"""A record as a Kubernetes object: a ControllerRevision, whose data the API server lets nobody change.

The data are the part of the spec that the revision's pods are built from. Annotations state the verdict. A record has no
owner: it outlives its InferenceService, and is found by its labels.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from pagefleet_contract.names import (
    CREATED_ANNOTATION,
    DELETED_ANNOTATION,
    MANAGED,
    MANAGED_LABEL,
    NAME_LABEL,
    RECORD,
    RECORDED_FOR_ANNOTATION,
    REJECTED_ANNOTATION,
    REJECTED_AT_ANNOTATION,
    REJECTED_MESSAGE_ANNOTATION,
    REVISION_LABEL,
    ROLE_ANNOTATION,
    ROLE_SINCE_ANNOTATION,
    SERVICE_LABEL,
)
from pagefleet_operator.domain.status.codec import MAX_TIME, time_text
from pagefleet_operator.domain.status.observation import RecordReading
from pagefleet_operator.domain.status.status import Rejection

API_VERSION, KIND = "apps/v1", "ControllerRevision"
STABLE, PREVIOUS = "stable", "previous"  # roles
MAX_MESSAGE = 1000
# The annotations that the operator writes. One without a value is written as "", which replaces a value from a back-up.
ANNOTATIONS = (
    RECORDED_FOR_ANNOTATION, CREATED_ANNOTATION, ROLE_ANNOTATION, ROLE_SINCE_ANNOTATION, REJECTED_ANNOTATION,
    REJECTED_AT_ANNOTATION, REJECTED_MESSAGE_ANNOTATION, DELETED_ANNOTATION,
)  # fmt: skip


def manifest(namespace: str, service: str, record: RecordReading) -> dict[str, Any]:
    """Build the object of a record. It has the version of the record that the decision was based on, "" where there was none."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": f"{service}-{record.revision}",
            "namespace": namespace,
            "resourceVersion": record.version,
            "labels": {
                MANAGED_LABEL: MANAGED,
                NAME_LABEL: RECORD,
                SERVICE_LABEL: service,
                REVISION_LABEL: record.revision,
            },
            "annotations": _annotations(record),
        },
        "data": {"spec": dict(record.spec)},
        "revision": int(min(max(0.0, record.created), MAX_TIME)),
    }


def readings(documents: Iterable[Mapping[str, Any]]) -> tuple[RecordReading, ...]:
    """Read the records among a service's ControllerRevisions, oldest first. Total: other objects are left out."""
    made = (_reading(document) for document in documents)
    return tuple(sorted((one for one in made if one is not None), key=lambda one: (one.created, one.revision)))


def _annotations(record: RecordReading) -> dict[str, str]:
    rejection = record.rejection
    values = {
        RECORDED_FOR_ANNOTATION: record.uid,
        CREATED_ANNOTATION: _text(record.created),
        ROLE_ANNOTATION: record.role,
        ROLE_SINCE_ANNOTATION: _text(record.since),
    }
    if rejection is not None:
        values |= {
            REJECTED_ANNOTATION: rejection.reason,
            REJECTED_AT_ANNOTATION: _text(rejection.time),
            REJECTED_MESSAGE_ANNOTATION: rejection.message[:MAX_MESSAGE],
        }
    return {name: values.get(name, "") for name in ANNOTATIONS}


def _reading(document: Mapping[str, Any]) -> RecordReading | None:
    metadata = document["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    service, revision = labels.get(SERVICE_LABEL, ""), labels.get(REVISION_LABEL, "")
    named = revision and metadata["name"] == f"{service}-{revision}"
    # A StatefulSet's ControllerRevisions have the labels of its pods. A record has another name, and no owner.
    if not named or labels.get(NAME_LABEL) != RECORD or metadata.get("ownerReferences"):
        return None
    data = document.get("data")
    spec = data.get("spec") if isinstance(data, Mapping) else None
    reason = annotations.get(REJECTED_ANNOTATION, "")
    rejection = Rejection(
        revision,
        reason,
        annotations.get(REJECTED_MESSAGE_ANNOTATION, ""),
        _seconds(annotations, REJECTED_AT_ANNOTATION),
    )
    return RecordReading(
        revision=revision,
        created=_seconds(annotations, CREATED_ANNOTATION),
        spec=dict(spec) if isinstance(spec, Mapping) else {},
        role=annotations.get(ROLE_ANNOTATION, ""),
        since=_seconds(annotations, ROLE_SINCE_ANNOTATION),
        rejection=rejection if reason else None,
        uid=annotations.get(RECORDED_FOR_ANNOTATION, ""),
        object=metadata.get("uid", ""),
        version=metadata.get("resourceVersion", ""),
    )


def _text(seconds: float) -> str:
    return time_text(seconds) if 0 < seconds <= MAX_TIME else ""


def _seconds(annotations: Mapping[str, str], name: str) -> float:
    """A time of an annotation as UNIX seconds; 0 where it is none."""
    try:
        return max(0.0, datetime.datetime.fromisoformat(annotations.get(name, "")).timestamp())
    except (ValueError, OverflowError):
        return 0.0
