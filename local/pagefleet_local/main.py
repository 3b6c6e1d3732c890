"""`pagefleet-local`: a real one-node Kubernetes on this machine, our images, the demo."""

from __future__ import annotations

from typing import Annotated

import typer

from pagefleet_local.assets import crdserver, debian
from pagefleet_local.base import paths
from pagefleet_local.base.alone import alone
from pagefleet_local.base.console import CONSOLE, stage
from pagefleet_local.base.preflight import check
from pagefleet_local.commands import demo as demo
from pagefleet_local.commands import images as images
from pagefleet_local.commands.errors import FAILED, readable_errors
from pagefleet_local.images import build as builder
from pagefleet_local.lifecycle import cleanup
from pagefleet_local.lifecycle.fleet_up import TARGETS
from pagefleet_local.lifecycle.up import Options, healthy, prepare, up

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
app.add_typer(images.app, name="images")
app.command("demo")(demo.demo)
app.command("kind")(demo.kind)
app.command("fleet")(demo.fleet)


@app.command("up")
def up_(
    accelerators: Annotated[int, typer.Option(help="Accelerators that the Node offers; 0 for none.")] = 8,
    accelerator_name: Annotated[str, typer.Option(help="Name of the extended resource.")] = "nvidia.com/gpu",
) -> None:
    """Start a bare one-node Kubernetes (idempotent)."""
    with readable_errors(), alone(paths.layout()):
        cluster = up(Options(accelerator=accelerator_name, accelerators=accelerators))
    CONSOLE.print(f"up: export KUBECONFIG={cluster.kubeconfig}")


@app.command()
def down() -> None:
    """Remove the cluster and everything that it made on this machine."""
    with readable_errors(), alone(paths.layout()):
        check(paths.layout(), node=False, running=True)
        with stage("taking everything down"):
            cleanup.down(paths.layout())
    _print_leftovers()


@app.command()
def status(
    leftovers: Annotated[bool, typer.Option(help="List the remains of an earlier cluster.")] = False,
) -> None:
    """Report whether the cluster is up. Exit code 1 when it is not."""
    with readable_errors():
        check(paths.layout(), node=False, running=True)
    if leftovers:
        _print_leftovers()
        return
    up_now = healthy(Options())
    CONSOLE.print(f"{'up' if up_now else 'down'}: {paths.layout().kubeconfig}")
    if not up_now:
        raise typer.Exit(FAILED)


@app.command()
def kubeconfig() -> None:
    """Print the path of the administrator's kubeconfig."""
    with readable_errors():
        print(paths.layout().kubeconfig)  # noqa: T201 - a shell substitution reads it


@app.command("prepare")
def prepare_(
    crd_server: Annotated[
        bool,
        typer.Option("--crd-server/--no-crd-server", help="Build what tests/crd runs, too."),
    ] = True,
) -> None:
    """Fetch and build everything a fleet needs, images included, so that starting one is quick."""
    with readable_errors():
        check(paths.layout(), node=True, running=True)
        prepare()
        builder.build(TARGETS)
        for name in ("prometheus", "prometheus-alertmanager"):
            debian.tool(name)
    if crd_server:
        try:
            crdserver.crd_server()
        except debian.AssetError as error:  # no fleet needs it
            CONSOLE.print(f"tests/crd will be skipped: {error}")


def _print_leftovers() -> None:
    lines = cleanup.leftovers(paths.layout())
    for line in lines:
        CONSOLE.print(f"left behind: {line}")
    if lines:
        raise typer.Exit(FAILED)
    CONSOLE.print("nothing is left behind")
