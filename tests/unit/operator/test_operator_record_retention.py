"""Protects how long the record of a revision is retained after its service is deleted, and what an export announces."""

from __future__ import annotations

import pytest

from pagefleet_contract.names import DELETED_ANNOTATION
from pagefleet_operator.kube.records import retention
from pagefleet_operator.kube.records.reading import announced

WEEK = retention.RETENTION_SECONDS


@pytest.mark.parametrize(("text", "number"), [("2", 2), ("", 0), ("x", 0), ("-1", 0), ("9" * 30, 0), ("²", 0)])
def test_the_number_of_exported_records_is_read_from_any_text(text: str, number: int) -> None:
    assert announced({"annotations": {"pagefleet.io/records": text}}) == number


def test_records_outlive_their_service_for_a_week() -> None:
    metadata = {
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {DELETED_ANNOTATION: "2026-02-01T00:00:00Z"},
    }
    missed = 1769904000.0  # 2026-02-01
    assert retention.missed_since(metadata) == missed
    assert not retention.is_over(metadata, missed + WEEK - 1)
    assert retention.is_over(metadata, missed + WEEK)


def test_records_that_a_back_up_brought_live_for_a_week_from_then_on() -> None:
    metadata = {
        "creationTimestamp": "2026-03-01T00:00:00Z",
        "annotations": {DELETED_ANNOTATION: "2026-01-01T00:00:00Z"},
    }
    created = 1772323200.0  # 2026-03-01
    assert not retention.is_over(metadata, created + WEEK - 1)
    assert retention.is_over(metadata, created + WEEK)


def test_a_record_whose_service_is_there_is_never_over() -> None:
    metadata = {"creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {DELETED_ANNOTATION: ""}}
    assert not retention.is_over(metadata, 4e9)
