"""The revision of a request: exact weights, sticky sessions, forced canaries, canaries on trial. Never looks at a pod's load."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Collection, Container, Mapping

from pagefleet_gateway.cluster.service import Service, ServiceKey
from pagefleet_gateway.cluster.state import Pod, RevisionKey, revision_key
from pagefleet_gateway.cluster.steps import Steps, forget

Weights = tuple[tuple[str, int], ...]
TRIAL_REQUESTS = 6  # that may wait for the first answer of a canary, at all gateways together


class Split:
    """The weighted draw of one service: permuted blocks.

    A block holds every revision as often as its weight (weights divided by their greatest common divisor), in
    random order. The next block starts when it is used up. So the realised split is exact at the end of each
    block and never further off than one block, which is tighter than independent draws. The order stays random
    and cannot fall in step with a client's pattern. Source: permuted-block randomisation of
    clinical trials (Zelen, "The randomization and stratification of patients to clinical trials", J. Chronic
    Diseases 27, 1974).
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._weights: Weights = ()
        self._block: list[str] = []

    def draw(self, weights: Weights) -> str:
        """Return the next revision. Raises ValueError unless the weights are whole and at least one is above 0."""
        if weights != self._weights:
            self._weights, self._block = weights, []
        if not self._block:
            self._block = self._new_block(weights)
        return self._block.pop()

    def _new_block(self, weights: Weights) -> list[str]:
        divisor = math.gcd(*(weight for _, weight in weights))
        if divisor <= 0:
            raise ValueError(f"weights must hold a whole number above 0, got {weights!r}")
        block = [revision for revision, weight in weights for _ in range(weight // divisor)]
        self._rng.shuffle(block)
        return block


class Splits:
    """The draws of all services, one `Split` each."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._splits: dict[ServiceKey, Split] = {}

    def choose(self, service: Service, live: Weights, headers: Mapping[str, str], canary_live: bool) -> str:
        """Return the revision for one request. `live`: the weights above 0 whose revision has a pod; must not be
        empty.
        """
        if canary_live and canary_forced(service, headers):
            return service.canary
        value = headers.get(service.sticky_header, "") if service.sticky_header else ""
        if value:
            return sticky_revision(live, f"{service.namespace}/{service.name}/{value}")
        if len(live) == 1:
            return live[0][0]
        return self._splits.setdefault(service.key, Split(self._rng)).draw(live)

    def failing(self, service: Service, ready: Collection[str], headers: Mapping[str, str]) -> str:
        """Return the revision that a request is drawn for which another service has to answer.

        It is drawn from the `ready` revisions, whose pods are all full, or from all revisions while none is ready. Return ""
        when no revision has a weight, and for a request that a header has sent to the canary: those count apart.
        """
        weights = tuple(entry for entry in service.weights if entry[1] > 0)
        if not weights or canary_forced(service, headers):
            return ""
        full = tuple(entry for entry in weights if entry[0] in ready)
        return self.choose(service, full or weights, headers, canary_live=False)

    def retain(self, keys: Container[ServiceKey]) -> Steps:
        """Forget services that are not among `keys`."""
        return forget(self._splits, keys)


class Trials:
    """The revisions that have answered a request of this gateway. A canary that has not is on trial.

    While it is, few requests wait for it: a canary that hangs, or is a hundred times slower, has no more users than it takes to
    show that. All others go to the stable revision. The first token, or the first answer that is no 5xx, ends the trial. Source:
    the half-open state of circuit breakers (Nygard, "Release It!", 2007).
    """

    def __init__(self) -> None:
        """`requests` may be in flight from this gateway to a canary on trial."""
        self._answered: set[RevisionKey] = set()
        self.requests = TRIAL_REQUESTS

    def share(self, gateways: int) -> None:
        """Divide the requests among so many gateways. Each of them sends one at least."""
        self.requests = max(1, TRIAL_REQUESTS // gateways)

    def record_answer(self, pod: Pod) -> None:
        """Record that a pod of a revision has answered."""
        self._answered.add(revision_key(pod))

    def tries(self, service: Service, revision: str) -> bool:
        """Return whether the revision is a canary on trial."""
        return revision == service.canary and (*service.key, revision) not in self._answered

    def retain(self, revisions: Container[RevisionKey]) -> Steps:
        """Forget revisions that are not among `revisions`."""
        return forget(self._answered, revisions)


def canary_forced(service: Service, headers: Mapping[str, str]) -> bool:
    """Whether the request has every header of `rollout.route.header` with its value."""
    return bool(service.canary_headers) and all(headers.get(name) == value for name, value in service.canary_headers)


def sticky_revision(weights: Weights, key: str) -> str:
    """Return the revision whose part of [0, 1) has the key's hash.

    Parts lie in order of the revision's name. So a weight change moves only the boundary, and only the share of
    clients that must change sides does.
    """
    ordered = sorted(weights)
    total = sum(weight for _, weight in ordered)
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    point = int.from_bytes(digest, "big") / 2**64 * total
    reached = 0
    for revision, weight in ordered:
        reached += weight
        if point < reached:
            return revision
    return ordered[-1][0]
