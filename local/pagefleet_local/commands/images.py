"""`pagefleet-local images`: build the production images, load them into the local fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagefleet_local.base import paths
from pagefleet_local.base.console import CONSOLE
from pagefleet_local.base.preflight import Refused
from pagefleet_local.commands.errors import readable_errors
from pagefleet_local.images import build as builder

app = typer.Typer(no_args_is_help=True, help=__doc__)
Targets = Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(builder.TARGETS)}; all when omitted.")]


@app.command()
def build(targets: Targets = None) -> None:
    """Build the images into the cache; unchanged ones are not built again."""
    with readable_errors():
        for target, archive in builder.build(targets or builder.TARGETS).items():
            CONSOLE.print(f"{builder.reference(target)}  {archive.stat().st_size / 1e6:.0f} MB")


@app.command()
def context(
    folder: Annotated[Path, typer.Argument(help="A folder that does not exist yet.")], targets: Targets = None
) -> None:
    """Write a build context with every wheel in it, for `docker build` and machines without a package index."""
    with readable_errors():
        if folder.exists():
            raise Refused(f"{folder} exists already: name a folder that does not exist yet")
        builder.context(folder, targets or builder.TARGETS)
    CONSOLE.print(f"docker build --target operator --build-arg PIP_INDEX=--no-index {folder}")


@app.command()
def load(targets: Targets = None) -> None:
    """Build what changed and import it into the local fleet's containerd."""
    with readable_errors():
        builder.load(paths.layout(), builder.build(targets or builder.TARGETS))
