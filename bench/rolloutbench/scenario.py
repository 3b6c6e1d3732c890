"""What is played: the fleet, its traffic, and what is wrong with the canary. Data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Regression:
    """What is worse on the canary from `onset` on, in seconds since its first traffic."""

    compute: float = 1.0  # times the seconds of every prompt and token
    tail_share: float = 0.0  # of the prompts that are computed `tail_factor` times as long
    tail_factor: float = 1.0
    errors: float = 0.0  # share of its requests that fail, beyond the fleet's own
    leak: float = 0.0  # growth of the seconds in an hour: 0.3 is 30 %
    hangs: bool = False  # its engines compute nothing any more, and stay ready
    onset: float = 0.0

    @property
    def exists(self) -> bool:
        return replaced_onset(self) != Regression()


def replaced_onset(regression: Regression) -> Regression:
    """Return the regression as if it began at once."""
    return dataclasses.replace(regression, onset=0.0)


@dataclass(frozen=True)
class Scenario:
    """A rollout. Times are seconds.

    `utilisation` is the share of time in which an engine of the stable revision computes prompts while that revision has
    all traffic; None: `service_seconds` is the mean time of a prompt instead. `limit` is how long the canary has
    traffic at most. `steps` and `guard` are of `spec.rollout`, None for the shipped defaults.
    """

    name: str = "identical"
    rate: float = 10.0  # requests a second
    replicas: int = 10
    utilisation: float | None = 0.3
    service_seconds: float = 0.3
    gateways: int = 1
    history: float = 600.0  # before the canary starts
    limit: float = 660.0
    regression: Regression = Regression()
    cold_seconds: float = 0.0  # for so long the canary's prefix caches retain nothing
    canary_prompts: float = 1.0  # times as long as the stable revision's
    streams: bool = True  # the clients ask for streams
    answer_seconds: float = 3.0  # mean, without interference; 0: there is no token after the first, as in an embedding
    errors: float = 0.0  # share of failed requests, on both revisions
    waves: float = 0.0  # an hour and pod: a neighbour slows the pod down
    wave_factor: float = 2.0
    wave_seconds: float = 30.0  # mean
    max_replicas: int | None = None  # of the autoscaler; None: `replicas`, and the canary's by its weight
    steps: tuple[Mapping[str, Any], ...] | None = None
    guard: Mapping[str, Any] | None = None
    baseline: bool = False  # a fresh group of the stable revision, of the canary's size and share, as Kayenta advises

    @property
    def bad(self) -> bool:
        """Whether the canary is worse than accepted."""
        return self.regression.exists

    def document(self) -> dict[str, Any]:
        """Return the scenario as JSON, for the head of a trace."""
        return json.loads(json.dumps(dataclasses.asdict(self)))
