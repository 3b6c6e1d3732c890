"""The canary's requests since the evidence against it began to grow: those that a regression would have met. Pure.

The ratio of quantiles over a whole rollout says little of a regression that began a minute ago. So the requests are kept from the
time at which the evidence was last no larger than at its start, as in a cumulative sum (Page, "Continuous inspection schemes",
Biometrika 1954), where the last zero is the likeliest onset.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagefleet_contract import sketch
from pagefleet_operator.domain.analysis.adjusted.waiting import Side


@dataclass(frozen=True)
class Suspects:
    """By load stratum: the load-adjusted times of requests that were measured, and the ages of those that ended unmeasured."""

    measured: dict[str, dict[int, int]] = field(default_factory=dict)
    unmeasured: dict[str, dict[int, int]] = field(default_factory=dict)

    def add(self, canary: Side, log: float) -> None:
        """Add a slice; `log` is the logarithm of the evidence with it."""
        if log <= 0:
            self.measured.clear()
            self.unmeasured.clear()
            return
        for known, strata in ((self.measured, canary.relative), (self.unmeasured, canary.unmeasured)):
            for name, own in strata.items():
                sketch.add_onto(known.setdefault(name, {}), own)

    def copied(self) -> Suspects:
        return Suspects(
            {name: dict(own) for name, own in self.measured.items()},
            {name: dict(own) for name, own in self.unmeasured.items()},
        )
