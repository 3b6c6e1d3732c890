"""The gateway's metrics without a gateway."""

from __future__ import annotations

import random
import time

from pagefleet_gateway.holding import Holding
from pagefleet_gateway.ledger import Ledger
from pagefleet_gateway.metrics import Metrics
from pagefleet_gateway.picker import Picker
from pagefleet_gateway.state import State


def gateway_metrics() -> Metrics:
    ledger = Ledger()
    picker = Picker(State(), ledger, random.Random(1))
    return Metrics(ledger, Holding(picker, time.monotonic, lambda _: None))
