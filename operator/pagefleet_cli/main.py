"""`pagefleet`: shows InferenceServices. Reads only."""

from __future__ import annotations

import datetime
import json
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml
from kubernetes import client, config
from rich.console import Console

from pagefleet_cli.simulate import simulate
from pagefleet_cli.tables import details, services

GROUP, VERSION, PLURAL = "pagefleet.io", "v1alpha1", "inferenceservices"
TIMEOUT_SECONDS = 15
app = typer.Typer(no_args_is_help=True, add_completion=True, help=__doc__)
console = Console(soft_wrap=True, highlight=False)
app.command()(simulate)


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


@app.callback()
def root() -> None:
    """LLM inference fleets on Kubernetes."""


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="one service, in detail")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="the context's when omitted")] = None,
    every: Annotated[bool, typer.Option("--all-namespaces", "-A", help="services of all namespaces")] = False,
    output: Annotated[Output, typer.Option("--output", "-o")] = Output.TABLE,
    kubeconfig: Annotated[str | None, typer.Option(help="KUBECONFIG or ~/.kube/config when omitted")] = None,
) -> None:
    """Fleets at a glance, or one service in detail."""
    try:
        found = _read(name, namespace, every, kubeconfig)
    except config.ConfigException as error:
        _fail(f"no way to a cluster: {error}")
    except client.ApiException as error:
        _fail(f"{name or PLURAL}: {error.status} {error.reason}")
    except Exception as error:
        if type(error).__module__.startswith("urllib3"):
            _fail(f"the API server does not answer: {error}")
        raise
    match output:
        case Output.JSON:
            console.print(json.dumps(found, indent=2), markup=False)
        case Output.YAML:
            console.print(yaml.safe_dump(found, sort_keys=False), markup=False)
        case Output.TABLE:
            console.print(services(found.get("items", [found]), datetime.datetime.now(datetime.UTC)))
            for table in details(found) if name else ():
                console.print()
                console.print(table)


def _read(name: str | None, namespace: str | None, every: bool, kubeconfig: str | None) -> dict[str, Any]:
    config.load_kube_config(kubeconfig)
    if namespace is None:
        _, active = config.list_kube_config_contexts(kubeconfig)
        namespace = active["context"].get("namespace", "default")
    api, timeout = client.CustomObjectsApi(), {"_request_timeout": TIMEOUT_SECONDS}
    if name:
        found = api.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name, **timeout)
    elif every:
        found = api.list_cluster_custom_object(GROUP, VERSION, PLURAL, **timeout)
    else:
        found = api.list_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, **timeout)
    result: dict[str, Any] = found
    return result


def _fail(message: str) -> None:
    Console(stderr=True).print(f"[red]pagefleet:[/red] {message}")
    raise typer.Exit(1)
