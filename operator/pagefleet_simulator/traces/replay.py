"""Reads published traces: BurstGPT's CSV and the Azure LLM inference traces' CSV, distinguished by their header.

BurstGPT (github.com/HPMLL/BurstGPT): Timestamp (seconds), Model, Request tokens, Response tokens, Total tokens, Log Type
(releases from 2.0 have Session ID and Elapsed time as well). Azure (github.com/Azure/AzurePublicDataset,
AzureLLMInferenceDataset2023/2024): TIMESTAMP (date and time, with up to seven decimals), ContextTokens, GeneratedTokens.
Rows whose answer has no token are failed requests in both; they are left out and counted.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pagefleet_simulator.fleet.request import Arrival
from pagefleet_simulator.traces.synthetic import LONGEST_SECONDS, Trace

BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MOST_TOKENS = 10_000_000  # of a prompt or an answer


class TraceError(ValueError):
    """A file that is no trace; the message names the line and the allowed content."""


@dataclass(frozen=True)
class Replay:
    """`skipped` rows had no answer."""

    trace: Trace
    skipped: int


def read(path: Path, model: str | None = None, speed: float = 1.0, limit: int | None = None) -> Replay:
    """`model` keeps BurstGPT's rows of that model; `speed` divides the time between arrivals; at most `limit` rows are read.

    Raises TraceError.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return parse(path.stem, file, model, speed, limit)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not text in UTF-8") from error


def parse(
    name: str, lines: Iterable[str], model: str | None = None, speed: float = 1.0, limit: int | None = None
) -> Replay:
    """Raises TraceError."""
    if speed <= 0:
        raise TraceError(f"speed must be above 0, not {speed}")
    rows = csv.DictReader(lines)
    try:
        return _parse(name, rows, model, speed, limit)
    except csv.Error as error:
        raise TraceError(f"{name}, line {rows.line_num + 1}: {error}") from error


def _parse(name: str, rows: csv.DictReader[str], model: str | None, speed: float, limit: int | None) -> Replay:
    header = tuple(rows.fieldnames or ())
    if all(column in header for column in BURSTGPT):
        columns, azure = BURSTGPT, False
    elif all(column in header for column in AZURE):
        columns, azure = AZURE, True
    else:
        raise TraceError(f"{name}: the first line must name {', '.join(BURSTGPT)} or {', '.join(AZURE)}, not {header}")
    if model is not None and "Model" not in header:
        raise TraceError(f"{name}: has no column Model to select {model!r} from")
    requests, skipped = [], 0
    for number, row in enumerate(_first(rows, limit), start=2):
        if model is not None and row["Model"] != model:
            continue
        try:
            at = _moment(row[columns[0]]) if azure else float(row[columns[0]])
            prompt, output = int(float(row[columns[1]])), int(float(row[columns[2]]))
        except (TypeError, ValueError, OverflowError) as error:
            raise TraceError(f"{name}, line {number}: {error}") from error
        if not math.isfinite(at):
            raise TraceError(f"{name}, line {number}: {columns[0]} must be a number of seconds, not {at}")
        if max(prompt, output) > MOST_TOKENS:
            raise TraceError(f"{name}, line {number}: a prompt and an answer have at most {MOST_TOKENS} tokens")
        if output < 1 or prompt < 1:
            skipped += 1
            continue
        requests.append((at, prompt, output))
    if not requests:
        raise TraceError(f"{name}: no request with an answer" + (f" of model {model!r}" if model else ""))
    requests.sort(key=lambda one: one[0])
    start = requests[0][0]
    arrivals = tuple(Arrival((at - start) / speed, prompt, output) for at, prompt, output in requests)
    if arrivals[-1].at > LONGEST_SECONDS:
        raise TraceError(
            f"{name}: the arrivals take {arrivals[-1].at / 86400:.3g} days, at most {LONGEST_SECONDS / 86400:g} are simulated: are its times seconds?"
        )
    return Replay(Trace(name, arrivals[-1].at + 1.0, arrivals), skipped)


def _first(rows: Iterable[dict[str, str]], limit: int | None) -> Iterator[dict[str, str]]:
    for count, row in enumerate(rows):
        if limit is not None and count >= limit:
            return
        yield row


def _moment(text: str) -> float:
    """UNIX seconds. The times of the traces have seven decimals and, in 2024, an offset."""
    text = text.strip()
    head, dot, tail = text.partition(".")
    if not dot:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    digits = next((i for i, sign in enumerate(tail) if not sign.isdigit()), len(tail))
    when = datetime.fromisoformat(head + tail[digits:])
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() + float(f"0.{tail[:digits] or 0}")
