"""`python -m pagefleet_local.publishing`: makes what a release needs beside images and chart."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from pagefleet_local.base.console import CONSOLE
from pagefleet_local.publishing import archive, artifact_hub, krew
from pagefleet_local.publishing.krew import Archive, PublishingError

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
FOLDER = Path("build/plugin")
Folder = Annotated[Path, typer.Option("--folder", help="where the archives and the manifest are")]


@app.command("plugin")
def plugin_(folder: Folder = FOLDER) -> None:
    """Make the archive of `kubectl pagefleet` for this machine's platform."""
    CONSOLE.print(str(archive.build(folder)), markup=False)


@app.command("plugin-manifest")
def plugin_manifest(
    url: Annotated[str, typer.Option(help="where the archives will be, without their names")],
    homepage: Annotated[str, typer.Option(help="the project's page")],
    folder: Folder = FOLDER,
) -> None:
    """Write krew's manifest of the archives in the folder: pagefleet.yaml."""
    found = []
    for path in sorted(folder.glob("*.tar.gz")):
        system, arch = krew.platform_of(path.name)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        found.append(Archive(system, arch, f"{url.rstrip('/')}/{path.name}", digest))
    target = folder / f"{krew.NAME}.yaml"
    target.write_text(krew.manifest(version("pagefleet"), homepage, found))
    CONSOLE.print(str(target), markup=False)


@app.command(artifact_hub.FILE.partition(".")[0])
def repository_(
    identifier: Annotated[str, typer.Option("--id", help="the repository's ID in Artifact Hub's control panel")],
    owner: Annotated[list[str] | None, typer.Option(help="NAME <EMAIL>, for a claim of ownership")] = None,
    folder: Annotated[Path, typer.Option("--folder", help="beside the chart repository's index.yaml")] = Path("build"),
) -> None:
    """Write artifacthub-repo.yml."""
    target = folder / artifact_hub.FILE
    target.write_text(artifact_hub.repository(identifier, owner or ()))
    CONSOLE.print(str(target), markup=False)


def main() -> None:
    try:
        app()
    except PublishingError as error:
        CONSOLE.print(str(error), markup=False)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
