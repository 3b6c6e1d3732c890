"""Built-in traces that are whole workloads: users, what they send, and when, at stated numbers.

Users act independently: each sends a request, reads the answer and thinks. With many users their requests together are close to a
Poisson process with the rate `users / seconds between requests` (Palm-Khinchine theorem), whatever the answers take; users do not
slow down while the service is slow. Each workload is the load of the example of the same name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from pagefleet_simulator.fleet.request import Arrival
from pagefleet_simulator.traces.synthetic import Trace

HOUR, MINUTE = 3600.0, 60.0
CHAT_USERS, QUIET_SHARE, CHAT_PAUSE = 1500, 0.1, 60.0
DOCUMENTS = 300
CODING_SESSIONS, CODING_PAUSE = 800, 45.0
READERS, DOCUMENT_TOKENS, READER_PAUSE = 100, 10_000, 60.0
INTERACTIVE, INTERNAL, BATCH = "interactive", "internal", "batch"  # the classes of examples/mixed-priorities.yaml


def live_chat(random: np.random.Generator) -> list[Arrival]:
    """An hour: 150 users, and 1,500 from minute 15 to 35, all of them there within a minute. A user sends 700 to 1,200 tokens
    (the conversation so far) once a minute. Answers: lognormal, median 180 tokens."""

    def users(at: np.ndarray) -> np.ndarray:
        spike = np.interp(at, (15 * MINUTE, 16 * MINUTE, 35 * MINUTE, 36 * MINUTE), (0.0, 1.0, 1.0, 0.0))
        return np.asarray(CHAT_USERS * (QUIET_SHARE + (1 - QUIET_SHARE) * spike))

    at = _times(lambda second: users(second) / CHAT_PAUSE, HOUR, random)
    answers = np.clip(180 * np.exp(random.normal(0, 0.5, len(at))), 1, 1024).astype(int)
    return _arrivals(at, random.integers(700, 1201, len(at)), answers)


def compliance_summaries(random: np.random.Generator) -> list[Arrival]:
    """300 documents of 3,000 to 6,000 tokens, queued within ten seconds; summaries of 300 to 600 tokens."""
    at = np.sort(random.uniform(0, 10, DOCUMENTS))
    return _arrivals(at, random.integers(3000, 6001, DOCUMENTS), random.integers(300, 601, DOCUMENTS))


def coding_questions(random: np.random.Generator) -> list[Arrival]:
    """An hour of 800 coding sessions; each asks every 45 s with about 900 tokens (lognormal, a tenth either way) and gets 50 to
    200."""
    at = _times(lambda second: np.full_like(second, CODING_SESSIONS / CODING_PAUSE), HOUR, random)
    prompts = np.clip(900 * np.exp(random.normal(0, 0.1, len(at))), 1, 4096).astype(int)
    return _arrivals(at, prompts, random.integers(50, 201, len(at)))


def long_document(random: np.random.Generator) -> list[Arrival]:
    """100 users begin within a minute to ask about one document of 10,000 tokens, once a minute for 20 minutes. A question has 30
    to 120 tokens, an answer 80 to 250."""
    at = _times(lambda second: READERS / READER_PAUSE * np.clip(second / MINUTE, 0.05, 1), 20 * MINUTE, random)
    questions, answers = random.integers(30, 121, len(at)), random.integers(80, 251, len(at))
    plain = _arrivals(at, DOCUMENT_TOKENS + questions, answers)
    return [replace(one, group=0, shared=DOCUMENT_TOKENS) for one in plain]


def mixed_priorities(random: np.random.Generator) -> list[Arrival]:
    """All four on one tier: chat and readers are `interactive`, coding is `internal`, documents are `batch` and come in the middle
    of the chat's spike, as the readers do."""
    middle = 20 * MINUTE
    parts = (
        _of(live_chat(random), INTERACTIVE, 0.0),
        _of(long_document(random), INTERACTIVE, middle),
        _of(coding_questions(random), INTERNAL, 0.0),
        _of(compliance_summaries(random), BATCH, middle),
    )
    return sorted(itertools.chain(*parts), key=lambda one: one.at)


WORKLOADS: dict[str, Callable[[np.random.Generator], list[Arrival]]] = {
    "live-chat-spike": live_chat,
    "compliance-summaries": compliance_summaries,
    "coding-questions": coding_questions,
    "long-document": long_document,
    "mixed-priorities": mixed_priorities,
}


def build(name: str, seed: int = 0) -> Trace:
    """Raises KeyError for an unknown name."""
    arrivals = WORKLOADS[name](np.random.default_rng([seed, *name.encode()]))
    return Trace(name, max(10 * MINUTE, arrivals[-1].at + 1), tuple(arrivals))


def _times(rate: Callable[[np.ndarray], np.ndarray], total: float, random: np.random.Generator) -> np.ndarray:
    """Arrival times in seconds of a Poisson process with `rate` requests per second at each whole second."""
    seconds = np.arange(total)
    counts = random.poisson(rate(seconds))
    return np.sort(np.repeat(seconds, counts) + random.random(int(counts.sum())))


def _arrivals(at: np.ndarray, prompts: np.ndarray, outputs: np.ndarray) -> list[Arrival]:
    return [Arrival(float(a), int(p), int(o)) for a, p, o in zip(at, prompts, outputs, strict=True)]


def _of(arrivals: list[Arrival], priority: str, later: float) -> Iterator[Arrival]:
    return (replace(one, at=one.at + later, priority=priority) for one in arrivals)
