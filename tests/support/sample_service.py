"""The InferenceService that the tests begin with: tests/data/sample_service.yaml. No test depends on the demo's service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

TEXT = (Path(__file__).resolve().parents[1] / "data/sample_service.yaml").read_text()


def sample() -> dict[str, Any]:
    """Return a document of the caller's own, to be changed at will."""
    document: dict[str, Any] = yaml.safe_load(TEXT)
    return document
