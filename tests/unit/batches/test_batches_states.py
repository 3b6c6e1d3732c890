"""Protects the states of a batch: which follows which, when each was entered, and that none leaves an end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_batches.jobs import batch as states
from pagefleet_batches.jobs.batch import ENDED, Batch, Counts, Status, Usage
from pagefleet_batches.jobs.lines import Checked, Problem

NEW = Batch("batch_1", "one", "", "/v1/chat/completions", "file_1", "24h", 100, 100 + 24 * 3600)
RUNNING = states.checked(NEW, Checked(3, "m", ()), 101)


def test_a_batch_goes_through_all_states_to_its_end() -> None:
    assert (RUNNING.status, RUNNING.total, RUNNING.model) == (Status.IN_PROGRESS, 3, "m")
    last = states.finalizing(RUNNING, 150)
    done = states.finished(last, Counts(2, 1), Usage(5, 1, 7, 2), "file_o", "", 151)
    assert done.status is Status.COMPLETED and done.ended_at == 151
    shown = done.document()
    assert [shown[f"{one}_at"] for one in ("created", "in_progress", "finalizing", "completed")] == [100, 101, 150, 151]
    assert shown["failed_at"] is None and shown["output_file_id"] == "file_o" and shown["error_file_id"] is None
    assert shown["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert shown["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 1},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 12,
    }


def test_a_wrong_file_fails_it() -> None:
    failed = states.checked(NEW, Checked(1, "", (Problem("invalid_url", "`url` must be x", 1, "url"),)), 102)
    assert failed.status is Status.FAILED and failed.ended_at == 102
    error = {"code": "invalid_url", "message": "`url` must be x", "line": 1, "param": "url"}
    assert failed.document()["errors"] == {"object": "list", "data": [error]}


def test_the_window_s_end_expires_it_and_a_cancellation_cancels_it() -> None:
    assert not states.overdue(RUNNING, RUNNING.expires_at - 1) and states.overdue(RUNNING, RUNNING.expires_at)
    assert states.finished(RUNNING, Counts(), Usage(), "", "", 9).status is Status.EXPIRED
    cancelled = states.cancelled(RUNNING, 120)
    assert cancelled.status is Status.CANCELLING and not states.overdue(cancelled, 10**9)
    assert states.finalizing(cancelled, 121) == cancelled
    assert states.finished(cancelled, Counts(), Usage(), "", "", 122).status is Status.CANCELLED
    assert states.finished(NEW, Counts(), Usage(), "", "", 9).status is Status.EXPIRED


@pytest.mark.parametrize("status", [*sorted(ENDED), Status.FINALIZING, Status.CANCELLING])
def test_what_ends_or_has_ended_is_not_cancelled(status: Status) -> None:
    batch = replace(RUNNING, status=status)
    assert states.cancelled(batch, 1) == batch and not states.overdue(batch, 10**9)


def test_files_are_shown_only_at_the_end() -> None:
    assert replace(RUNNING, output_file_id="file_o").document()["output_file_id"] is None
