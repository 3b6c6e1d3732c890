"""How a pod's memory grows, from readings of its processes, and after how many days it reaches the pod's limit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pagefleet_contract.quantity import amount

Samples = Sequence[tuple[float, float]]  # seconds and MiB
WARM = 0.2  # the share of a run that is warm-up
MIB = 2**20


@dataclass(frozen=True)
class Growth:
    """MiB at the end, MiB per hour by a straight line, and the standard error of that."""

    size: float
    slope: float
    error: float

    def days(self, limit: float) -> float:
        """The days until `limit` MiB at the least growth that the readings allow (two standard errors less); infinite
        without growth."""
        if self.size >= limit:
            return 0.0
        certain = self.slope - 2 * self.error
        return (limit - self.size) / certain / 24 if certain > 0 else math.inf


def growth(samples: Samples) -> Growth:
    """Fit the readings after the warm-up."""
    taken = np.array(samples)
    taken = taken[taken[:, 0] >= taken[0, 0] + WARM * (taken[-1, 0] - taken[0, 0])]
    (slope, _), covariance = np.polyfit(taken[:, 0] / 3600, taken[:, 1], 1, cov=True)
    return Growth(float(taken[-1, 1]), float(slope), float(np.sqrt(covariance[0, 0])))


def together(processes: Iterable[Samples]) -> list[tuple[float, float]]:
    """The readings of a pod: the sums of its processes', which were read at the same times."""
    return [(readings[0][0], sum(size for _, size in readings)) for readings in zip(*processes, strict=True)]


def limits(checkout: Path) -> Mapping[str, float]:
    """The memory limits in MiB of the operator's and the gateway's manifests, and of the engine of the sample."""
    return {
        "operator": _limit(checkout / "manifests/base/operator.yaml"),
        "gateway": _limit(checkout / "manifests/gateway/gateway.yaml"),
        "engine": _mib(
            _only(checkout / "manifests/samples/chat.yaml", "InferenceService")["spec"]["resources"]["memory"]
        ),
    }


def _limit(path: Path) -> float:
    pod = _only(path, "Deployment")["spec"]["template"]["spec"]
    return sum(_mib(container["resources"]["limits"]["memory"]) for container in pod["containers"])


def _only(path: Path, kind: str) -> dict[str, Any]:
    (document,) = (one for one in yaml.safe_load_all(path.read_text()) if one and one["kind"] == kind)
    return dict(document)


def _mib(quantity: str) -> float:
    return amount(quantity) / MIB
