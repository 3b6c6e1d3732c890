"""The options that several commands share, and the completion of service names."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pagefleet_cli.base.cluster import Cluster, Target
from pagefleet_cli.base.errors import CommandError

COMPLETION_SECONDS = 3.0  # a person waits at the prompt


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def typed(context: typer.Context) -> Target:
    """The target of a command line that is still being typed."""
    given = context.params
    kubeconfig = given.get("kubeconfig")
    return Target(given.get("namespace"), Path(kubeconfig) if kubeconfig else None, given.get("context"))


def complete_service(context: typer.Context, incomplete: str) -> list[str]:
    """Names of services with the prefix `incomplete`; none when the cluster does not answer."""
    try:
        items = Cluster(typed(context), COMPLETION_SECONDS).services()["items"]
    except CommandError:
        return []
    return sorted(name for item in items if (name := str(item["metadata"]["name"])).startswith(incomplete))


Service = Annotated[str, typer.Argument(help="Name of the InferenceService.", autocompletion=complete_service)]
OptionalService = Annotated[
    str | None, typer.Argument(help="Name of one service, to show it in detail.", autocompletion=complete_service)
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="The namespace; that of the kubeconfig's context when omitted.")
]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="Path of the kubeconfig; KUBECONFIG or ~/.kube/config when omitted.")
]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; the current one when omitted.")]
Format = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]
