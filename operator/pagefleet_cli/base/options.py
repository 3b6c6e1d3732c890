"""The options that several commands share, and the completion of service names."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pagefleet_cli.base.cluster import Cluster, Target
from pagefleet_cli.base.faults import Fault

COMPLETION_SECONDS = 3.0  # somebody waits with a finger on the tab key


class Output(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def typed(context: typer.Context) -> Target:
    """What a command line that is still being typed names."""
    given = context.params
    kubeconfig = given.get("kubeconfig")
    return Target(given.get("namespace"), Path(kubeconfig) if kubeconfig else None, given.get("context"))


def complete_service(context: typer.Context, incomplete: str) -> list[str]:
    """Names of services that begin with what is typed; none when the cluster cannot be asked."""
    try:
        items = Cluster(typed(context), COMPLETION_SECONDS).services()["items"]
    except Fault:
        return []
    return sorted(name for item in items if (name := str(item["metadata"]["name"])).startswith(incomplete))


Service = Annotated[str, typer.Argument(help="The InferenceService.", autocompletion=complete_service)]
OptionalService = Annotated[str | None, typer.Argument(help="One service, in detail.", autocompletion=complete_service)]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="The context's when omitted.")]
Kubeconfig = Annotated[Path | None, typer.Option(help="KUBECONFIG or ~/.kube/config when omitted.")]
Context = Annotated[str | None, typer.Option(help="Context of the kubeconfig; the current one when omitted.")]
Format = Annotated[Output, typer.Option("--output", "-o", help="How the answer is written.")]
