"""`artifacthub-repo.yml`: by which Artifact Hub knows who owns a repository of charts or plugins. Pure.

Source: https://artifacthub.io/docs/topics/repositories/. What it shows of the chart itself is in the chart (chart/artifact_hub.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import UUID

import yaml

from pagefleet_local.publishing.krew import PublishingError

FILE = "artifacthub-repo.yml"
OWNER = re.compile(r"([^<>]+?) <([^<>@\s]+@[^<>@\s]+)>")


def repository(identifier: str, owners: Iterable[str]) -> str:
    """The file's text. `identifier` is the UUID that Artifact Hub shows in its control panel once the repository is added there; an
    owner is "NAME <EMAIL>" as in Artifact Hub's account. Raises PublishingError."""
    try:
        known = str(UUID(identifier))
    except ValueError as error:
        raise PublishingError(
            f"repository ID {identifier!r} must be the UUID of Artifact Hub's control panel"
        ) from error
    people = [_owner(text) for text in owners]
    return yaml.safe_dump({"repositoryID": known, **({"owners": people} if people else {})}, sort_keys=False)


def _owner(text: str) -> dict[str, str]:
    if (match := OWNER.fullmatch(text.strip())) is None:
        raise PublishingError(f"owner {text!r} must be NAME <EMAIL>")
    return {"name": match[1], "email": match[2]}
