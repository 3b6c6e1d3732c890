"""Protects the messages for texts of the wrong form: they state the right form in words, not as a regular expression."""

from __future__ import annotations

from typing import Any

import pytest

from pagefleet_operator.domain.spec.parse import SpecErrors, parse
from pagefleet_operator.domain.spec.schema.patterns import ALLOWED
from pagefleet_operator.domain.spec.schema.spec import SPEC


def errors(path: tuple[str, ...], value: str) -> dict[str, str]:
    spec: dict[str, Any] = {"model": {"source": "file:///m"}}
    place = spec
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value
    parsed = parse(spec)
    return {error.field: error.message for error in parsed.errors} if isinstance(parsed, SpecErrors) else {}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("model", "source"),
            "ftp://a/b",
            "unsupported scheme ftp://; use hf://, s3://, gs://, az://, pvc://, oci://, file:// or python://",
        ),
        (
            ("model", "source"),
            "/models/m",
            "must be hf://org/name[@revision], s3://bucket[/prefix], gs://bucket[/prefix], az://account/container[/prefix], pvc://claim/path, oci://registry/name@sha256:DIGEST[/path], file:///path or "
            "python://package/file.gguf; "
            "not '/models/m'",
        ),
        (("scaling", "idleToZero"), "5 minutes", "must be a duration such as 90s, 1h30m or 3d; not '5 minutes'"),
        (("scaling", "tolerance"), "10", "must be a percentage such as 15%; not '10'"),
        (("resources", "memory"), "4GB", "must be a quantity such as 500m, 2 or 4Gi; not '4GB'"),
    ],
)
def test_the_message_for_a_text_of_the_wrong_form_states_the_right_one(
    path: tuple[str, ...], value: str, message: str
) -> None:
    assert errors(path, value) == {".".join(("spec", *path)): message}


def test_every_pattern_of_the_schema_has_words() -> None:
    def patterns(node: Any) -> set[str]:
        if isinstance(node, list):
            return {pattern for sub in node for pattern in patterns(sub)}
        if not isinstance(node, dict):
            return set()
        own = {node["pattern"]} if isinstance(node.get("pattern"), str) else set()
        return own | {pattern for sub in node.values() for pattern in patterns(sub)}

    assert patterns(SPEC) == set(ALLOWED)
