"""A batch and the states that it goes through. Pure; times are Unix seconds.

    validating -> in_progress -> finalizing -> completed
        |             |-> expired               (the window is over)
        |-> failed    |-> cancelling -> cancelled

A batch that is cancelled or expires before its file was checked has no answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pagefleet_batches.jobs.lines import Checked, Problem

WINDOWS: Mapping[str, int] = {"24h": 24 * 3600}  # completion windows and their seconds


class Status(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


ENDED = frozenset({Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED})


@dataclass(frozen=True)
class Usage:
    """Tokens of the lines that were answered."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.cached + other.cached,
            self.output + other.output,
            self.reasoning + other.reasoning,
        )

    def document(self) -> dict[str, object]:
        return {
            "input_tokens": self.input,
            "input_tokens_details": {"cached_tokens": self.cached},
            "output_tokens": self.output,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.input + self.output,
        }


@dataclass(frozen=True)
class Counts:
    """The lines that ended. `failed`: those in the error file."""

    completed: int = 0
    failed: int = 0


NO_USAGE, NO_COUNTS = Usage(), Counts()


@dataclass(frozen=True)
class Batch:
    """`client` is the name of the API key that made it, "" where the gateway demands none. `service` is `namespace/name` where
    the path named it, "" where the model does."""

    id: str
    client: str
    service: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: Status = Status.VALIDATING
    model: str = ""
    total: int = 0
    counts: Counts = NO_COUNTS
    usage: Usage = NO_USAGE
    metadata: Mapping[str, str] | None = None
    output_seconds: int | None = None  # how long output and error file are kept; None: as long as every file
    output_file_id: str = ""
    error_file_id: str = ""
    problems: tuple[Problem, ...] = ()
    times: Mapping[str, int] = field(default_factory=dict)  # when it entered each state, by OpenAI's field

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def ended_at(self) -> int | None:
        return self.times.get(f"{self.status}_at") if self.ended else None

    def document(self) -> dict[str, object]:
        """Return OpenAI's batch object."""
        problems = [problem.document() for problem in self.problems]
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model or None,
            "errors": {"object": "list", "data": problems} if problems else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status.value,
            "output_file_id": self.output_file_id or None if self.ended else None,
            "error_file_id": self.error_file_id or None if self.ended else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{status}_at": self.times.get(f"{status}_at") for status in Status if status is not Status.VALIDATING},
            "request_counts": {
                "total": self.total,
                "completed": self.counts.completed,
                "failed": self.counts.failed,
            },
            "usage": self.usage.document(),
            "metadata": self.metadata,
        }


def checked(batch: Batch, file: Checked, now: int) -> Batch:
    """Return the batch after its input file was checked."""
    if file.problems:
        return _entered(replace(batch, problems=file.problems), Status.FAILED, now)
    return _entered(replace(batch, total=file.total, model=file.model), Status.IN_PROGRESS, now)


def cancelled(batch: Batch, now: int) -> Batch:
    """Return the batch after a request to cancel it. One that cannot be cancelled any more stays as it is."""
    if batch.status not in (Status.VALIDATING, Status.IN_PROGRESS):
        return batch
    return _entered(batch, Status.CANCELLING, now)


def finalizing(batch: Batch, now: int) -> Batch:
    """Return the batch after its last line was answered."""
    return _entered(batch, Status.FINALIZING, now) if batch.status is Status.IN_PROGRESS else batch


def overdue(batch: Batch, now: float) -> bool:
    """Whether the window is over before the lines are."""
    return batch.status in (Status.VALIDATING, Status.IN_PROGRESS) and now >= batch.expires_at


def finished(batch: Batch, counts: Counts, usage: Usage, output: str, error: str, now: int) -> Batch:
    """Return the batch after its files were written; `output` and `error` are their ids, "" for none."""
    end = {Status.CANCELLING: Status.CANCELLED, Status.FINALIZING: Status.COMPLETED}.get(batch.status, Status.EXPIRED)
    known = replace(batch, counts=counts, usage=usage, output_file_id=output, error_file_id=error)
    return _entered(known, end, now)


def _entered(batch: Batch, status: Status, now: int) -> Batch:
    return replace(batch, status=status, times={**batch.times, f"{status}_at": now})
