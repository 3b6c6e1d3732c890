"""Protects that a setting of the batches server outside its bounds ends the start with its name and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagefleet_batches.settings import settings_from
from pagefleet_gateway.settings import MIB, SettingError

FOLDER = {"PAGEFLEET_BATCHES_FOLDER": "/data"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("FOLDER", "", "must name the folder"),
        ("GATEWAY_URL", "pagefleet-gateway", "must begin with http:// or https://"),
        ("PORT", "65536", "from 0 to 65535"),
        ("MAX_FILE_MIB", "0", "from 1 to 102400"),
        ("MAX_IN_FLIGHT", "many", "must be a whole number from 1 to 4096"),
        ("RETENTION_DAYS", "-1", "from 1 to 3650"),
        ("MAX_CLIENT_BATCHES", "0", "from 1 to 10000"),
    ],
)
def test_a_wrong_value_names_the_variable(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingError, match=f"PAGEFLEET_BATCHES_{name}.*{message}"):
        settings_from(FOLDER | {f"PAGEFLEET_BATCHES_{name}": value})


def test_values_are_read_and_the_others_have_their_defaults() -> None:
    given = {"PAGEFLEET_BATCHES_MAX_FILE_MIB": "3", "PAGEFLEET_BATCHES_RETENTION_DAYS": "2"}
    settings = settings_from(FOLDER | given)
    assert (settings.max_file_bytes, settings.retention_seconds) == (3 * MIB, 2 * 24 * 3600)
    assert (settings.folder, settings.max_lines, settings.api_keys_file) == (Path("/data"), 50_000, None)
