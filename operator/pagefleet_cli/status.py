"""`pagefleet status`: the fleet at a glance, or one service in detail. Reads only."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from pagefleet_cli.base import options
from pagefleet_cli.base.cluster import Cluster, Target
from pagefleet_cli.base.errors import readable_errors
from pagefleet_cli.base.options import Output
from pagefleet_cli.base.output import plain, show
from pagefleet_cli.base.tables import details, services


def status(
    name: options.OptionalService = None,
    namespace: options.Namespace = None,
    every: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Services of all namespaces.")] = False,
    output: options.Format = Output.TABLE,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Show all services at a glance, or one in detail."""
    if name and every:
        raise typer.BadParameter("a service is in one namespace: give a name or --all-namespaces, not both")
    with readable_errors():
        cluster = Cluster(Target(namespace, kubeconfig, context))
        document = cluster.service(name) if name else cluster.services(every)
    now, wide = datetime.datetime.now(datetime.UTC), output is Output.WIDE
    show(
        output,
        plain(document),
        lambda: [services(document.get("items", [document]), now, wide), *(details(document) if name else ())],
    )
