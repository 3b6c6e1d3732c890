"""One simulated engine: chunked prefill and decode under one token budget, KV pages, preemption by recomputation.

Steps that are alike are computed together. As long as no sequence ends, joins or runs out of pages, k steps last
k x (base + prefill + decode) + kv x (their contexts, which grow by one token a sequence and step), in closed form.

The engine differs from the real scheduler in two points. It takes all pages of a prompt at its admission, not chunk by
chunk. It charges each sequence with one page more than it may use in the end, so that tokens never exceed pages.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass

from pagefleet_simulator.fleet.profile import Profile
from pagefleet_simulator.fleet.request import Ending, Request


@dataclass
class Counters:
    """Counts since the engine's start.

    They are seconds with work, steps, computed and generated tokens, preemptions, tokens of shared prefixes that were not
    computed again, and the sum of the first-token delays with their number.
    """

    busy: float = 0.0
    steps: int = 0
    prefilled: int = 0
    generated: int = 0
    preemptions: int = 0
    shared: int = 0
    ttft: float = 0.0
    first_tokens: int = 0


class Engine:
    """An engine in virtual time; all times are seconds.

    `put` adds a request. `due` is the time at which `finish` must be called next (inf while the engine is idle).
    `sync(now)` advances the engine to the first step boundary at or after `now`. A `hung` engine takes no step.
    """

    def __init__(self, profile: Profile, prefix_caching: bool = True) -> None:
        self.profile, self.prefix_caching = profile, prefix_caching
        self.waiting: deque[Request] = deque()
        self.prefilling: deque[Request] = deque()
        self.decoding: dict[Request, int] = {}  # newest last; the value is the heap entry's number
        self.counters = Counters()
        self.due = math.inf
        self.hung = False
        self.used = 0  # tokens of KV charged
        self.contexts = 0  # tokens of KV that a decode step reads
        self._heap: list[tuple[int, int, Request]] = []
        self._number = 0
        self._time = 0.0
        self._steps = 0  # of the present plan
        self._shares: list[tuple[Request, int]] = []
        self._fixed = 0.0  # seconds of a step of the plan, without KV reads
        self._prefixes: OrderedDict[int, list[int]] = OrderedDict()  # group: [tokens, users]; idle longest first

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    @property
    def in_flight(self) -> int:
        return len(self.waiting) + len(self.prefilling) + len(self.decoding)

    @property
    def waiting_tokens(self) -> int:
        return sum(request.arrival.prompt + request.generated for request in self.waiting)

    @property
    def prefill_left(self) -> int:
        """Prompt tokens that admitted sequences still have to compute."""
        return sum(request.left for request in self.prefilling)

    @property
    def pages_held(self) -> int:
        """Pages of sequences and of prefixes in use."""
        idle = sum(tokens for tokens, users in self._prefixes.values() if users == 0)
        return min(self.profile.pages, -(-(self.used - idle) // self.profile.page_size))

    def fits(self, request: Request) -> bool:
        """Whether the request could ever be served by this engine."""
        arrival = request.arrival
        return arrival.prompt + arrival.output + self.profile.page_size <= self.profile.capacity

    def put(self, request: Request, now: float) -> list[Request]:
        """Queue a request that `fits`; return the requests that ended in steps up to now."""
        ended: list[Request] = []
        idle = self.due == math.inf and not self.hung
        if idle:
            self._time = now
        elif not self.hung and not self.waiting and self._admits(request):
            ended = self.sync(now)
            idle = True
        self._wait(request, first=False)
        if idle:
            self._plan()
        return ended

    def finish(self) -> list[Request]:
        """Compute the planned steps, at `due`; return the requests that ended with them."""
        ended = self._apply(self._steps)
        self._plan()
        return ended

    def sync(self, now: float) -> list[Request]:
        """Compute the planned steps that have begun by `now`, without a new plan."""
        count = self._steps_by(now)
        return self._apply(count)

    def look(self, now: float) -> None:
        """Compute the planned steps that are over by `now`. No request ends in them; load and counters become current."""
        if self.due > now and self._steps:
            self._apply(max(0, self._steps_by(now) - 1))

    def hang(self, now: float) -> list[Request]:
        """Stop after the step that is under way; return the requests that ended by then."""
        ended = self.sync(now) if self.due < math.inf else []
        self.hung, self.due, self._steps, self._shares = True, math.inf, 0, []
        return ended

    def resume(self, now: float) -> None:
        self.hung, self._time = False, max(now, self._time)
        self._plan()

    # -- planning -----------------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        self._admit()
        while not self._shape():
            self._preempt()
        self.due = math.inf if self._steps == 0 else self._time + self._duration(self._steps)

    def _shape(self) -> bool:
        """Choose the next steps, all alike; False when there are not enough pages for even one step."""
        profile, decoding = self.profile, len(self.decoding)
        budget, steps, total = profile.step_tokens - decoding, 1 << 60, 0
        self._shares = []
        for request in self.prefilling:
            part = min(request.left, profile.chunk_tokens, budget)
            if part <= 0:
                break
            self._shares.append((request, part))
            budget -= part
            total += part
            steps = min(steps, request.left // part)
        if decoding:
            self._forget_stale()
            room = (profile.capacity - self.used) // decoding
            if room < 1:
                self._reclaim(decoding)
                room = (profile.capacity - self.used) // decoding
            if room < 1:
                return False
            steps = min(steps, self._heap[0][0] - self.counters.steps, room)
        self._steps = steps if decoding or self._shares else 0
        self._fixed = profile.step.seconds(total, decoding, 0)
        return True

    def _duration(self, steps: int) -> float:
        grown = len(self.decoding) * steps * (steps - 1) / 2
        return steps * self._fixed + self.profile.step.kv * (steps * self.contexts + grown)

    def _steps_by(self, now: float) -> int:
        """The number of planned steps until `now`, the running step included, because it cannot be interrupted."""
        if now <= self._time:
            return 0
        low, high = 1, self._steps
        while low < high:
            middle = (low + high) // 2
            if self._time + self._duration(middle) >= now:
                high = middle
            else:
                low = middle + 1
        return low

    # -- steps --------------------------------------------------------------------------------------------------------

    def _apply(self, steps: int) -> list[Request]:
        if steps == 0:
            return []
        counters, decoding = self.counters, len(self.decoding)
        seconds = self._duration(steps)
        self._time += seconds
        counters.busy += seconds
        counters.steps += steps
        counters.generated += decoding * steps
        self.used += decoding * steps
        self.contexts += decoding * steps
        ended = []
        for request, part in self._shares:
            request.left -= part * steps
            counters.prefilled += part * steps
        while self._heap and self._heap[0][0] <= counters.steps:
            _, number, request = heapq.heappop(self._heap)
            if self.decoding.get(request) == number:
                del self.decoding[request]
                self.contexts -= request.arrival.prompt + request.arrival.output - 1
                ended.append(self._end(request))
        while self.prefilling and self.prefilling[0].left == 0:
            request = self.prefilling.popleft()
            if self._started(request):
                ended.append(self._end(request))
        if self.prefilling and any(request.left == 0 for request in self.prefilling):
            done = [request for request in self.prefilling if request.left == 0]
            self.prefilling = deque(request for request in self.prefilling if request.left)
            ended += [self._end(request) for request in done if self._started(request)]
        self._steps -= steps
        return ended

    def _started(self, request: Request) -> bool:
        """A prompt is computed, so its next token exists. Return whether that token was the last one."""
        counters = self.counters
        if math.isnan(request.first):
            request.first = self._time
            counters.ttft += request.ttft
            counters.first_tokens += 1
        request.generated += 1
        counters.generated += 1
        self.used += 1
        request.held += 1
        left = request.arrival.output - request.generated
        if left == 0:
            return True
        self._number += 1
        request.upto = counters.steps
        request.stop = counters.steps + left
        self.decoding[request] = self._number
        self.contexts += request.arrival.prompt + request.generated - 1
        heapq.heappush(self._heap, (request.stop, self._number, request))
        return False

    def _end(self, request: Request) -> Request:
        self.used -= request.held + (request.stop - request.upto)
        self._unpin(request)
        request.end, request.ending = self._time, Ending.SERVED
        return request

    # -- pages --------------------------------------------------------------------------------------------------------

    def _cost(self, request: Request) -> int:
        """Tokens of KV for its admission: its own tokens without the prefix of its group, and one page more."""
        return request.arrival.prompt + request.generated - self._hit(request) + self.profile.page_size

    def _hit(self, request: Request) -> int:
        if not self.prefix_caching or request.arrival.group not in self._prefixes:
            return 0
        # At least one token is always computed, because its logits give the next token.
        return min(self._prefixes[request.arrival.group][0], request.arrival.prompt - 1)

    def _admits(self, request: Request) -> bool:
        """Whether a request that arrives now would join the next step."""
        if self.running >= self.profile.max_sequences:
            return False
        taken = len(self.decoding) + sum(part for _, part in self._shares)
        idle = sum(tokens for tokens, users in self._prefixes.values() if users == 0)
        return taken < self.profile.step_tokens and self._cost(request) <= self.profile.capacity - self.used + idle

    def _admit(self) -> None:
        profile = self.profile
        while self.waiting and self.running < profile.max_sequences:
            request = self.waiting[0]
            # One free page for each running sequence; otherwise the new one would be preempted within a few tokens.
            spare = self.running * profile.page_size
            self._pin(request)
            cost = self._cost(request)
            if self.used + cost + spare > profile.capacity:
                self._reclaim(cost + spare)
            if self.used + cost + spare > profile.capacity and self.running:
                self._unpin(request)
                return
            self.waiting.popleft()
            hit = self._hit(request)
            request.left = request.arrival.prompt + request.generated - hit
            request.held = cost
            request.stop = request.upto = 0
            self.used += cost
            self.counters.shared += hit
            self.prefilling.append(request)
            self._share(request)

    def _preempt(self) -> None:
        """Free the pages of the least important sequence, the newest among equals. It is computed again from its start, before
        all waiting requests of its rank."""
        request = max((*self.decoding, *self.prefilling), key=lambda one: (one.rank, one.arrival.at))
        if request not in self.decoding:
            self.prefilling.remove(request)
            self.used -= request.held
        else:
            del self.decoding[request]
            made = self.counters.steps - request.upto
            self.contexts -= request.arrival.prompt + request.generated - 1 + made
            self.used -= request.held + made
            request.generated += made
        request.left = request.held = request.stop = request.upto = 0
        self._unpin(request)
        self.counters.preemptions += 1
        self._wait(request, first=True)

    def _wait(self, request: Request, first: bool) -> None:
        """Let a request wait: the `first` of its rank, or the last one. A place is looked for from the nearer end."""
        waiting, rank = self.waiting, request.rank
        if first:
            place = next((index for index, one in enumerate(waiting) if one.rank >= rank), len(waiting))
        else:
            after = next((index for index, one in enumerate(reversed(waiting)) if one.rank <= rank), len(waiting))
            place = len(waiting) - after
        waiting.insert(place, request)

    def _forget_stale(self) -> None:
        while self.decoding.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)

    # -- prefixes -----------------------------------------------------------------------------------------------------

    def _pin(self, request: Request) -> None:
        group = request.arrival.group
        if self.prefix_caching and group in self._prefixes and not request.pinned:
            self._prefixes[group][1] += 1
            self._prefixes.move_to_end(group)
            request.pinned = True

    def _unpin(self, request: Request) -> None:
        if request.pinned:
            self._prefixes[request.arrival.group][1] -= 1
            request.pinned = False

    def _share(self, request: Request) -> None:
        """The first request of a group computes the prefix for the following ones; its pages become the group's pages."""
        arrival = request.arrival
        tokens = min(arrival.shared, arrival.prompt - 1)
        if not self.prefix_caching or arrival.group < 0 or tokens < 1 or arrival.group in self._prefixes:
            return
        self._prefixes[arrival.group] = [tokens, 1]
        request.pinned = True
        request.held -= tokens

    def _reclaim(self, needed: int) -> None:
        """Drop idle prefixes, the longest unused first, until `needed` tokens are free or no idle prefix is left."""
        for group in [group for group, (_, users) in self._prefixes.items() if users == 0]:
            if self.used + needed <= self.profile.capacity:
                return
            self.used -= self._prefixes.pop(group)[0]
