"""Checks whether a client's grammar compiles, in a process of its own that may be killed: a few hundred bytes of JSON
schema can occupy any compiler for hours. The process ends itself at its budget; the next check starts another.
"""

from __future__ import annotations

import json
import resource
import select
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from pagefleet_engine.model.text.grammar import Compiler, GrammarSpec

CPU_SECONDS = 0.5
MEMORY = 512 << 20  # on top of the tokenizer's
WALL_SECONDS = 10.0
TOO_MUCH = "it takes more than {} s or {} MB to compile; make it smaller"


class _Spec(NamedTuple):
    kind: str
    text: str


class Unchecked(Exception):
    """The process that checks was too slow, on a node that has no time for it, or was killed: the grammar may be good."""


class Checker:
    """Grammars checked for the model of `vocabulary`. Thread-safe, one check at a time; the arguments are Compiler's."""

    def __init__(
        self,
        vocabulary: str,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        cpu_seconds: float = CPU_SECONDS,
        cached: int = 512,
    ) -> None:
        self._start = json.dumps([vocabulary, vocab_size, list(eos_token_ids), cpu_seconds])
        self._budget = TOO_MUCH.format(cpu_seconds, MEMORY >> 20)
        self._process: subprocess.Popen[bytes] | None = None
        self._known: OrderedDict[tuple[str, str], str | None] = OrderedDict()
        self._cached, self._lock = cached, Lock()

    def check(self, spec: GrammarSpec) -> None:
        """Check a grammar: blocks for milliseconds, WALL_SECONDS at most. Raises ValueError with a message for the client, and
        Unchecked, which is not remembered, when that says nothing about the grammar.
        """
        key = (spec.kind, spec.text)
        with self._lock:
            if key not in self._known:
                self._known[key] = self._ask(spec)
            self._known.move_to_end(key)
            while len(self._known) > self._cached:
                self._known.popitem(last=False)
            error = self._known[key]
        if error is not None:
            raise ValueError(error)

    def warm_up(self) -> None:
        """Starts the process ahead of the first check; a quarter of a second."""
        with self._lock:
            self._ask(_Spec("json_object", ""))

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, spec: GrammarSpec) -> str | None:
        """The error, or None when the grammar is good. Raises Unchecked, RuntimeError when no process comes up."""
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            if _exchange(self._process, self._start, 6 * WALL_SECONDS) is None:
                self._end()
                raise RuntimeError("the process that checks grammars did not start")
        answer = _exchange(self._process, json.dumps([spec.kind, spec.text]), WALL_SECONDS)
        if answer is None:
            by_itself = _ended_by_itself(self._process)
            self._end()
            if not by_itself:
                raise Unchecked("the grammar could not be checked in time; send it again")
            return self._budget
        error: str | None = json.loads(answer)
        return error

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with process:  # closes the pipes and waits
                pass


def _exchange(process: subprocess.Popen[bytes], line: str, seconds: float) -> bytes | None:
    """Sends a line; the process's one line in answer, or None when it ended or the time is over."""
    if process.stdin is None or process.stdout is None:
        return None
    try:
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        poll = select.poll()  # select() refuses descriptors from 1024 on, which a server with many connections has
        poll.register(process.stdout, select.POLLIN)
        return process.stdout.readline() or None if poll.poll(seconds * 1000) else None
    except OSError:
        return None


def _ended_by_itself(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process that does not answer has ended at a limit of its own."""
    try:
        return process.wait(1) != -signal.SIGKILL
    except subprocess.TimeoutExpired:
        return False


def main() -> None:
    """Reads the vocabulary, then one [kind, text] a line; answers null or the error. Ends with its input."""
    lines = sys.stdin.buffer
    vocabulary, vocab_size, eos_token_ids, cpu_seconds = json.loads(lines.readline())
    compiler = Compiler(vocabulary, vocab_size, eos_token_ids, cached=1)
    compiler.try_out(_Spec("json_object", ""))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _answer("ready")
    while line := lines.readline():
        kind, text = json.loads(line)
        # Processor time, not the clock: a busy node refuses no grammar. The kernel ends the process even in native code.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            compiler.try_out(_Spec(kind, text))
            error = None
        except ValueError as refused:
            error = str(refused)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer(error)


def _answer(value: str | None) -> None:
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
