"""How much of the prompts sent to each pod it has probably not computed yet: what a next prompt would wait behind.

An estimate between scrapes: a prompt's uncached tokens count from its pick on, and are worked off at the pace that
answers' first tokens have shown for the pod's revision. The pace follows the quicker answers (an expectile: Newey and
Powell, "Asymmetric Least Squares Estimation", Econometrica 1987), because the slower ones have waited for others. Without
a streamed answer nothing is known, and then nothing is counted. Pure; times are seconds of any steady clock.
"""

from __future__ import annotations

from collections.abc import Collection

from pagefleet_gateway.cluster.state import Pod

UP, DOWN = 0.1, 0.01  # how far the pace follows a quicker and a slower answer
LEAST_TOKENS = 256  # a shorter prompt's time is mostly not its computing

Key = tuple[str, str, str]  # namespace, service, revision


class Backlogs:
    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}  # pod uid -> tokens, and when they were that many
        self._paces: dict[Key, float] = {}  # tokens a second

    def sent(self, pod: Pod, tokens: float, now: float) -> None:
        self._levels[pod.uid] = (self.waiting(pod, now) + tokens, now)

    def waiting(self, pod: Pod, now: float) -> float:
        """Tokens that the pod has still to compute before the next prompt's."""
        level, at = self._levels.get(pod.uid, (0.0, now))
        if not level:
            return 0.0
        pace = self._paces.get(_key(pod))
        return 0.0 if pace is None else max(0.0, level - (now - at) * pace)

    def measured(self, pod: Pod, tokens: float, seconds: float) -> None:
        """A prompt of so many uncached tokens had its first token after so many seconds."""
        if tokens < LEAST_TOKENS or seconds <= 0:
            return
        seen, key = tokens / seconds, _key(pod)
        pace = self._paces.setdefault(key, seen)
        self._paces[key] = pace + (UP if seen > pace else DOWN) * (seen - pace)

    def keep(self, pods: Collection[Pod]) -> None:
        """Forget pods and revisions that are gone."""
        uids, keys = {pod.uid for pod in pods}, {_key(pod) for pod in pods}
        self._levels = {uid: level for uid, level in self._levels.items() if uid in uids}
        self._paces = {key: pace for key, pace in self._paces.items() if key in keys}


def _key(pod: Pod) -> Key:
    return (pod.namespace, pod.service, pod.revision)
