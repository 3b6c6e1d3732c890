"""The backlog of each pod: the tokens of prompts sent there that it has probably not computed yet. Pure.

It is an estimate between scrapes. A prompt's uncached tokens count from its pick on. The pod works them off at the
throughput that the first tokens of answers have shown for its revision. The throughput follows the quicker answers (an
expectile: Newey and Powell, "Asymmetric Least Squares Estimation", Econometrica 1987), because the slower ones have waited
for others. Before the first streamed answer the throughput is not known, and the backlog counts as 0.
Times are seconds of any steady clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from pagefleet_gateway.cluster.paces import Paces
from pagefleet_gateway.cluster.state import KnownPods, Pod, RevisionKey, revision_key
from pagefleet_gateway.cluster.steps import Steps, forget

GAIN_QUICKER, GAIN_SLOWER = 0.1, 0.01  # how far the throughput follows a quicker and a slower answer
MIN_TOKENS = 256  # the time of a shorter prompt is mostly not its computation


class Backlogs:
    def __init__(self) -> None:
        self.paces = Paces()
        self._levels: dict[str, tuple[float, float]] = {}  # pod uid -> tokens, and when they were that many
        self._throughputs: dict[RevisionKey, float] = {}  # tokens a second
        self._pods: Mapping[str, Pod] = {}  # by uid, those that there are, since the first `retain`
        self.sent: dict[str, float] = {}  # the tokens of all prompts that this gateway has sent, by the pod's uid

    def add_prompt(self, pod: Pod, tokens: float, now: float) -> None:
        """Count a prompt of so many uncached tokens that is sent to the pod."""
        self._levels[pod.uid] = (self.tokens(pod, now) + tokens, now)
        self.sent[pod.uid] = self.sent.get(pod.uid, 0.0) + tokens

    def add_others_prompt(self, uid: str, tokens: float, now: float) -> None:
        """Count prompts that another gateway has sent to a pod. A pod that is not known yet has no backlog."""
        pod = self._pods.get(uid)
        if pod is not None:
            self._levels[uid] = (self.tokens(pod, now) + tokens, now)

    def tokens(self, pod: Pod, now: float) -> float:
        """Return the tokens that the pod has still to compute before the next prompt's."""
        level, at = self._levels.get(pod.uid, (0.0, now))
        if not level:
            return 0.0
        throughput = self._throughputs.get(revision_key(pod))
        return 0.0 if throughput is None else max(0.0, level - (now - at) * throughput / self.paces.of(pod))

    def record_first_token(self, pod: Pod, tokens: float, seconds: float, expected: float | None = None) -> None:
        """Learn from a prompt of so many uncached tokens whose first token came after so many seconds. `expected` seconds are
        what the load at its pick let expect of the service's pods."""
        self.paces.learn(pod, seconds, expected)
        if tokens < MIN_TOKENS or seconds <= 0:
            return
        measured, key = tokens / seconds, revision_key(pod)
        estimate = self._throughputs.setdefault(key, measured)
        gain = GAIN_QUICKER if measured > estimate else GAIN_SLOWER
        self._throughputs[key] = estimate + gain * (measured - estimate)

    def retain(self, pods: KnownPods) -> Steps:
        """Forget pods and revisions that are not among `pods`."""
        self._pods = pods.by_uid
        yield from forget(self._levels, pods.by_uid)
        yield from forget(self.sent, pods.by_uid)
        yield from self.paces.retain(pods.by_uid)
        yield from forget(self._throughputs, pods.revisions)
