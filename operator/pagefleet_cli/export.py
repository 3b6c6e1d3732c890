"""`pagefleet export`: services with the records of their revisions, as YAML for an empty cluster. Reads only."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated

import typer

from pagefleet_cli.base import options
from pagefleet_cli.base.cluster import Cluster, Document, Target
from pagefleet_cli.base.errors import readable_errors
from pagefleet_cli.base.output import yaml_of
from pagefleet_contract.names import (
    ACTION_ANNOTATION,
    API_VERSION,
    DELETED_ANNOTATION,
    KIND,
    RECORDS_ANNOTATION,
    SERVICE_LABEL,
)

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
NOT_EXPORTED = (ACTION_ANNOTATION, DELETED_ANNOTATION, RECORDS_ANNOTATION, LAST_APPLIED)


def export(
    name: options.OptionalService = None,
    namespace: options.Namespace = None,
    every: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Services of all namespaces.")] = False,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Print services with the records of their revisions, to be applied in an empty cluster. The stable and the rejected
    revisions are known there."""
    if name and every:
        raise typer.BadParameter("a service is in one namespace: give a name or --all-namespaces, not both")
    with readable_errors():
        cluster = Cluster(Target(namespace, kubeconfig, context))
        items = [cluster.service(name)] if name else cluster.services(every)["items"]
        records = cluster.records(name or "", every)
    sys.stdout.write(yaml_of(*documents(items, records)))


def documents(services: list[Document], records: list[Document]) -> list[Document]:
    """What is exported: the records first, then each service with the number of its records. Without status, uid and version."""
    counts = Counter(_owner(record) for record in records)
    made = [
        {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": _metadata(record, {}),
            "data": record.get("data"),
            "revision": record["revision"],
        }
        for record in records
    ]
    for service in services:
        count = counts[service["metadata"]["namespace"], service["metadata"]["name"]]
        announced = {RECORDS_ANNOTATION: str(count)} if count else {}
        made.append(
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": _metadata(service, announced),
                "spec": service.get("spec"),
            }
        )
    return made


def _owner(record: Document) -> tuple[str, str]:
    metadata = record["metadata"]
    return metadata["namespace"], (metadata.get("labels") or {}).get(SERVICE_LABEL, "")


def _metadata(document: Document, more: Document) -> Document:
    """Return name, namespace, labels and annotations, without those that hold only in this cluster."""
    metadata = document["metadata"]
    present = metadata.get("annotations") or {}
    annotations = {key: value for key, value in present.items() if key not in NOT_EXPORTED} | more
    parts = {
        "name": metadata["name"],
        "namespace": metadata["namespace"],
        "labels": metadata.get("labels"),
        "annotations": annotations,
    }
    return {key: value for key, value in parts.items() if value}
