"""`pagefleet-local`: a real one-node Kubernetes on this machine, our images, the demo."""

from __future__ import annotations

from typing import Annotated

import typer

from pagefleet_local.assets import debian
from pagefleet_local.base import paths
from pagefleet_local.base.console import CONSOLE, stage
from pagefleet_local.base.preflight import check
from pagefleet_local.commands import demo as demo
from pagefleet_local.commands import images as images
from pagefleet_local.commands.errors import FAILED, told
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
    accelerators: Annotated[int, typer.Option(help="how many the Node offers; 0 for none")] = 8,
    accelerator_name: Annotated[str, typer.Option(help="the extended resource's name")] = "nvidia.com/gpu",
) -> None:
    """Start a bare one-node Kubernetes (idempotent)."""
    with told():
        cluster = up(Options(accelerator=accelerator_name, accelerators=accelerators))
    CONSOLE.print(f"up: export KUBECONFIG={cluster.kubeconfig}")


@app.command()
def down() -> None:
    """Remove the cluster and everything it made on this machine."""
    layout = paths.layout()
    with told():
        check(layout, node=False, running=True)
    with stage("taking everything down"):
        cleanup.down(layout)
    _tell_leftovers()


@app.command()
def status(
    leftovers: Annotated[bool, typer.Option(help="list what an earlier cluster left behind")] = False,
) -> None:
    """Whether the cluster is up; exit 1 when not."""
    if leftovers:
        _tell_leftovers()
        return
    up_now = healthy(Options())
    CONSOLE.print(f"{'up' if up_now else 'down'}: {paths.layout().kubeconfig}")
    if not up_now:
        raise typer.Exit(FAILED)


@app.command()
def kubeconfig() -> None:
    """Print the path of the administrator's kubeconfig."""
    print(paths.layout().kubeconfig)  # noqa: T201 - the one thing a shell substitution wants


@app.command("prepare")
def prepare_() -> None:
    """Fetch and build everything a fleet needs, images included, so that starting one is quick."""
    with told():
        check(paths.layout(), node=True, running=True)
        prepare()
        builder.build(TARGETS)
        for name in ("prometheus", "prometheus-alertmanager"):
            debian.tool(name)


def _tell_leftovers() -> None:
    found = cleanup.leftovers(paths.layout())
    for line in found:
        CONSOLE.print(f"left: {line}")
    if found:
        raise typer.Exit(FAILED)
    CONSOLE.print("nothing is left behind")
