"""A simulated engine: continuous batching under one token budget, a KV limit, an LRU prefix cache. Virtual time.

Simplified against a real one: the KV pages of the prompt and of the whole answer are reserved at admission, so
nothing is ever preempted; prefix blocks are 16 tokens, and those in use are shared and never evicted. A step costs `STEP_SECONDS` and a little for every
prefilled token and every running sequence (the shape of an 8B model on one GPU).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from bench.gatewaybench.trace import BLOCK

STEP_SECONDS = 0.008
PREFILL_SECONDS = 0.00005  # per token
DECODE_SECONDS = 0.0001  # per running sequence
TOKEN_BUDGET = 2048  # prefilled and decoded tokens a step
MAX_SEQUENCES = 64
KV_TOKENS = 96 * 1024


@dataclass
class Job:
    """One request inside an engine. `blocks`: hashes of its prompt's blocks of 16 tokens."""

    key: int
    arrived: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[bytes, ...]
    left: int = 0  # prompt tokens still to prefill
    cached: int = 0  # prompt tokens that the prefix cache held
    private: int = 0  # KV tokens that no other job can share
    first_token: float = 0.0


class Engine:
    """`put` a job; `step` at `wake`; `step` returns the jobs that ended."""

    def __init__(self, speed: float = 1.0, kv_tokens: int = KV_TOKENS) -> None:
        """`speed`: how many times as fast its steps are."""
        self.speed, self.kv_tokens = speed, kv_tokens
        self.waiting: deque[Job] = deque()
        self.prefilling: deque[Job] = deque()
        self.decoding: list[tuple[int, int, Job]] = []  # heap by the step that ends it
        self.private = 0  # KV tokens of admitted jobs, without shared blocks
        self.shared: dict[bytes, int] = {}  # blocks in use, with how many jobs use them
        self.idle: OrderedDict[bytes, None] = OrderedDict()  # unused blocks, oldest first
        self.steps = 0
        self.started: list[Job] = []  # the jobs that the last step gave their first token
        self.wake: float | None = None

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    @property
    def kv_usage(self) -> float:
        return self.used / self.kv_tokens

    @property
    def used(self) -> int:
        return self.private + BLOCK * len(self.shared)

    def put(self, job: Job, now: float) -> None:
        self.waiting.append(job)
        if self.wake is None:
            self.wake = now

    def step(self, now: float) -> list[Job]:
        """Run one step that begins at `now`: admit, prefill, decode. Sets `wake` to its end."""
        self._admit()
        self.steps += 1
        budget = max(0, TOKEN_BUDGET - len(self.decoding))
        prefilled, started = 0, list[Job]()
        while self.prefilling and budget > prefilled:
            job = self.prefilling[0]
            part = min(job.left, budget - prefilled)
            job.left -= part
            prefilled += part
            if job.left == 0:
                started.append(self.prefilling.popleft())
        end = now + (STEP_SECONDS + prefilled * PREFILL_SECONDS + self.running * DECODE_SECONDS) / self.speed
        ended = []
        while self.decoding and self.decoding[0][0] <= self.steps:
            ended.append(heapq.heappop(self.decoding)[2])
        self.started = started
        for job in started:
            job.first_token = end
            if job.output_tokens == 1:
                ended.append(job)
            else:
                heapq.heappush(self.decoding, (self.steps + job.output_tokens - 1, job.key, job))
        for job in started:
            fresh = job.blocks[job.cached // BLOCK :]
            self._pin(fresh)
            job.private -= BLOCK * len(fresh)
            self.private -= BLOCK * len(fresh)
        for job in ended:
            self.private -= job.private
            self._unpin(job.blocks)
        self.wake = end if self.waiting or self.running else None
        return ended

    def _admit(self) -> None:
        while self.waiting and self.running < MAX_SEQUENCES:
            job = self.waiting[0]
            hits = next((i for i, block in enumerate(job.blocks) if not self.holds(block)), len(job.blocks))
            # At least one token is always prefilled: its logits are the first answer.
            hits = min(hits, (job.prompt_tokens - 1) // BLOCK)
            private = job.prompt_tokens - hits * BLOCK + job.output_tokens
            revived = sum(block not in self.shared for block in job.blocks[:hits])
            if self.used + private + revived * BLOCK > self.kv_tokens:
                return
            self.waiting.popleft()
            self._pin(job.blocks[:hits])
            job.cached, job.private = hits * BLOCK, private
            job.left = job.prompt_tokens - job.cached
            self.private += private
            self.prefilling.append(job)
            while BLOCK * len(self.idle) + self.used > self.kv_tokens and self.idle:
                self.idle.popitem(last=False)

    def holds(self, block: bytes) -> bool:
        return block in self.shared or block in self.idle

    def _pin(self, blocks: Sequence[bytes]) -> None:
        for block in blocks:
            self.idle.pop(block, None)
            self.shared[block] = self.shared.get(block, 0) + 1

    def _unpin(self, blocks: Sequence[bytes]) -> None:
        """Unpin blocks from the last to the first, so that a block is evicted before the one that it follows."""
        for block in reversed(blocks):
            self.shared[block] -= 1
            if not self.shared[block]:
                del self.shared[block]
                self.idle[block] = None
