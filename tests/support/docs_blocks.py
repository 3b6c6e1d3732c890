"""The code blocks of the documentation, and a shell that runs them.

A `sh` or `console` block states after its language where it is tested, so that nothing runs by mistake: `here` (a shell
without a cluster), `plane` (the control plane of tests/cluster: no gateway, no container), `fleet` (what `make up` starts), or
`no-run: REASON`. `any-output` beside it: what the block shows is an example and not compared. The same words may begin an
HTML comment, whose lines are then run and not shown: the steps that a reader has done before.

In a block with `$ ` prompts the lines below a command are what it prints. They must be there in their order; a line `...`
stands for anything. Hashes, times and durations are compared as such, not by value.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
PLACES = ("here", "plane", "fleet", "no-run")
FENCE = re.compile(r"^( *)(```+|~~~+)[ \t]*(\w*)[ \t]*([^\n]*)\n(.*?)^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
HIDDEN = re.compile(r"^<!-- (here|plane|fleet)\b([^\n]*)\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
SHELL = ("sh", "console")
# Values that differ at each run: timestamps, hashes of revisions and actions, durations, ages.
VALUES = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\b[0-9a-f]{12}\b|\b(?=[0-9a-f]*\d)[0-9a-f]{8}\b"), "HASH"),
    (re.compile(r"\b(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+\b"), "DURATION"),
)

TELL = 'kubectl get isvc -A -o jsonpath=\'{range .items[*]}{.metadata.name}{" "}{.status.rollout}{"\\n"}{end}\''
# Functions for the hidden lines between a page's commands, which cause events and wait for them. A reader waits by
# looking. `act` does the same as `pagefleet rollout ACTION`, without the start of a Python for each.
WAITS = f"""\
act() {{
  id=$(head -c6 /dev/urandom | od -An -tx1 | tr -d ' ')
  kubectl annotate isvc "$1" --overwrite \\
    pagefleet.io/action="{{\\"id\\":\\"$id\\",\\"action\\":\\"$2\\",\\"by\\":\\"root (user)\\"}}"
  kubectl wait isvc "$1" --for=jsonpath='{{.status.action.id}}'="$id" --timeout=60s
}}
phase() {{
  for _ in $(seq 300); do
    if [ "$(kubectl get isvc "$1" ${{3:+-n "$3"}} -o jsonpath='{{.status.rollout.phase}}')" = "$2" ]; then return; fi
    sleep 0.2
  done
  echo "$1 is not $2"; {TELL}; return 1
}}
"""


@dataclass(frozen=True)
class Command:
    """One command. `shown`: the lines that it prints; None: the page does not show them."""

    text: str
    shown: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    place: str
    reason: str
    any_output: bool
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> Iterator[Command]:
        if not re.search(r"^\$ ", self.text, re.MULTILINE):
            yield Command(self.text)
            return
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            lines, command = part.splitlines(), []
            while lines:
                command.append(lines.pop(0))
                if not command[-1].endswith("\\"):
                    break
            yield Command("\n".join(command), None if self.any_output else tuple(lines))


def pages() -> dict[str, str]:
    """Return page -> text, of docs/, README.md, CONTRIBUTING.md and examples/README.md."""
    paths = [*sorted((CHECKOUT / "docs").rglob("*.md"))]
    paths += [CHECKOUT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")]
    return {str(path.relative_to(CHECKOUT)): path.read_text() for path in paths}


def fenced(page: str, text: str) -> Iterator[tuple[int, str, str, str]]:
    """Yield (line, language, info, body) of each fenced block."""
    for match in FENCE.finditer(text):
        indent, _, language, info, body = match.groups()
        body = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        yield text.count("\n", 0, match.start()) + 1, language, info.strip(), body


def blocks(page: str, text: str) -> list[Block]:
    """Return the shell blocks and hidden lines of a page, in order. Raises ValueError for an unknown marker."""
    shell_blocks = [
        _block(page, line, info, body) for line, language, info, body in fenced(page, text) if language in SHELL
    ]
    for hidden in HIDDEN.finditer(text):
        line = text.count("\n", 0, hidden.start()) + 1
        shell_blocks.append(_block(page, line, hidden[1] + hidden[2], hidden[3]))
    return sorted(shell_blocks, key=lambda block: block.line)


def _block(page: str, line: int, info: str, body: str) -> Block:
    place, _, reason = info.partition(":")
    any_output = "any-output" in place.split()
    words = [word for word in place.split() if word != "any-output"]
    if len(words) != 1 or words[0] not in PLACES:
        raise ValueError(f"{page}:{line}: `{info}` is no marker; write one of {', '.join(PLACES)}, and any-output")
    if (words[0] == "no-run") != bool(reason.strip()):
        raise ValueError(f"{page}:{line}: `no-run: REASON` needs a reason, and nothing else has one")
    return Block(page, line, words[0], reason.strip(), any_output, body)


def of(place: str) -> dict[str, list[Block]]:
    """Return page -> its blocks that are run at `place`."""
    every = {page: [block for block in blocks(page, text) if block.place == place] for page, text in pages().items()}
    return {page: own for page, own in every.items() if own}


class Shell:
    """One bash, in which the blocks of a page run one after the other: variables, folders and background jobs stay."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """`folder` gets links to everything in the checkout, so that pages can write files beside them."""
        for entry in CHECKOUT.iterdir():
            if not entry.name.startswith(".") or entry.name == ".venv":
                (folder / entry.name).symlink_to(entry)
        self._folder, self._script = folder, folder / ".script"
        sources = ":".join(
            str(CHECKOUT / root) for root in ("contract", "operator", "engine", "kernels", "gateway", "local")
        )
        self._process = subprocess.Popen(
            ["bash"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True, env={
                **os.environ, "PATH": f"{CHECKOUT}/.venv/bin:{os.environ['PATH']}", "PYTHONPATH": sources,
                "COLUMNS": "200", "NO_COLOR": "1", "HOME": str(folder), **environment,
            },
        )  # fmt: skip
        self._status = 0

    def run(self, block: Block) -> None:
        """Run a block. Raises AssertionError when a command fails without an `echo $?` behind it, or prints other lines."""
        commands = list(block.commands())
        for index, command in enumerate(commands):
            printed, status = self._one(command.text)
            expected = index + 1 < len(commands) and commands[index + 1].text == "echo $?"
            if status and not expected:
                raise AssertionError(f"{block.name}: exit code {status}\n{command.text}\n{printed}")
            missing = first_missing(command.shown or (), printed)
            if missing is not None:
                raise AssertionError(
                    f"{block.name}: `{missing}` is shown, but was not printed\n{command.text}\n{printed}"
                )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        """End the shell, and every process that it left in the background."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _one(self, text: str) -> tuple[str, int]:
        """Run `text`, and return its output and its exit code. A script ends at its first command that fails."""
        several = len(text.strip().splitlines()) > 1
        self._script.write_text(text if several else f"(exit {self._status})\n{text}\n")
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("bash has no pipes")
        # A failure does not end the pages' shell, as it does not end a reader's; errexit holds for the block alone.
        begin = "set -e; trap '_code=$?; echo; echo =-= $_code' EXIT" if several else ":"
        self._process.stdin.write(
            f"{begin}\nsource {self._script}\n_code=$?; set +e; trap - EXIT; echo; echo =-= $_code\n"
        )
        self._process.stdin.flush()
        printed: list[str] = []
        for line in self._process.stdout:
            if match := re.match(r"=-= (\d+)$", line):
                self._status = int(match[1])
                return "".join(printed), self._status
            printed.append(line)
        return "".join(printed), 1


def first_missing(shown: tuple[str, ...], printed: str) -> str | None:
    """Return the first line that is not printed after those before it; None when all are."""
    lines = iter([_plain(line) for line in printed.splitlines()])
    for expected in shown:
        plain = _plain(expected)
        if plain and expected.strip() != "..." and plain not in lines:
            return expected
    return None


def _plain(line: str) -> str:
    for pattern, name in VALUES:
        line = pattern.sub(name, line)
    return " ".join(line.split())


def play(blocks: list[Block], folder: Path, environment: dict[str, str]) -> None:
    """Run a page's blocks, in order, in a shell of their own in the empty folder `folder`."""
    with Shell(folder, environment) as shell:
        shell.run(Block("waits", 0, "here", "", True, WAITS))
        for block in blocks:
            shell.run(block)
