"""Prompt lookup on real text: chat prompts, the likeliest tokens, answers that end by themselves.

Answers that repeat themselves (end of text ignored) are prompt lookup's best case. Here half of the prompts ask to work on a
passage, whose words come again in the answer, and half are open questions, whose words do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cpubench import report, runs
from cpubench.measures import Answer, makespan
from cpubench.rounds import Rounds
from cpubench.systems import System
from cpubench.workload import Request

PAIRS = {"pagefleet": "pagefleet-nospec", "pagefleet-int8": "pagefleet-int8-nospec"}  # with prompt lookup and without
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"  # SmolLM2's chat template without a system message
MOST = 256  # output tokens
ON_PASSAGES = ("Correct the spelling of this text and repeat it in full:", "Summarise this text in three sentences:")
OPEN = (
    "Explain to a child why the sky is blue.", "Write a polite letter that declines an invitation to a wedding.",
    "What should I look at before I buy a used bicycle?", "Write a Python function that returns the n-th Fibonacci number.",
    "List five uses of vinegar in a household.", "Who was Marie Curie, and what is she known for?",
    "Describe how bread is baked, step by step.", "What is the difference between a lake and a sea?",
)  # fmt: skip


@dataclass(frozen=True)
class Spoken:
    """One run of one system. one_tokens_per_s: of all answers one after the other; tokens_per_s: of all at once."""

    system: str
    one_tokens_per_s: float
    tokens_per_s: float
    output_tokens: int
    answers: tuple[str, ...]
    others_cpu: float


def prompts(text: str) -> list[str]:
    """One passage with each of the two tasks in turn, and one open question, for each of the open questions."""
    passages = [part.strip() for part in text.split("\n\n")][: len(OPEN)]
    on_passages = [f"{ON_PASSAGES[number % 2]}\n\n{passage}" for number, passage in enumerate(passages)]
    return [CHAT.format(asked) for pair in zip(on_passages, OPEN, strict=True) for asked in pair]


def requests(text: str, encode: Callable[[str], Sequence[int]]) -> list[Request]:
    return [Request(tuple(encode(prompt)), MOST, to_the_end=True) for prompt in prompts(text)]


def measure(rounds: Rounds, systems: Sequence[System], asked: Sequence[Request]) -> list[Spoken]:
    """Measure and show the systems; those that failed are missing."""
    measured = rounds.every({system.name: rounds.least_disturbed(partial(_once, system, asked)) for system in systems})
    if measured:
        _show(rounds.console, report.medians(measured), len(asked), rounds.count)
    return measured


def _once(system: System, asked: Sequence[Request], log: Path) -> Spoken:
    """Raises RuntimeError with the end of the system's log when it fails."""
    with runs.warmed(system, log) as (served, others):
        single = runs.one_by_one(served, asked, log)
        together = runs.answers(served, asked, log)
        return Spoken(
            system.name, _tokens(single) / sum(answer.times[-1] - answer.sent for answer in single),
            _tokens(together) / makespan(together), _tokens(single), tuple(answer.text for answer in single), others.share(),
        )  # fmt: skip


def _tokens(answers: Sequence[Answer]) -> int:
    return sum(answer.output_tokens for answer in answers)


def _show(console: Console, middle: Mapping[str, Spoken], prompts: int, rounds: int) -> None:
    """Tokens a second, and what prompt lookup makes of them; only systems with the same answers can be compared."""
    table = Table(title=f"Real text: {prompts} chat prompts, greedy, to the end of the answer; median of {rounds}")
    table.add_column("system", no_wrap=True)
    for heading in ("one by one, tok/s", "at once, tok/s", "output tokens", "others' CPU %"):
        table.add_column(heading, justify="right")
    for run in middle.values():
        table.add_row(
            run.system, f"{run.one_tokens_per_s:.1f}", f"{run.tokens_per_s:.1f}", f"{run.output_tokens:.0f}",
            f"{run.others_cpu:.0f}",
        )  # fmt: skip
    console.print(table)
    for with_lookup, without in PAIRS.items():
        if with_lookup in middle and without in middle:
            on, off = middle[with_lookup], middle[without]
            same = sum(one == other for one, other in zip(on.answers, off.answers, strict=True))
            console.print(
                f"  {with_lookup} / {without}: one by one {on.one_tokens_per_s / off.one_tokens_per_s:.2f}x, at once "
                f"{on.tokens_per_s / off.tokens_per_s:.2f}x; {same} of {len(on.answers)} answers are the same",
                highlight=False,
            )
