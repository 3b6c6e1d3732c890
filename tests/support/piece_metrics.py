"""The gateway's metrics without a gateway."""

from __future__ import annotations

import random
import time

from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.holding.holding import Holding
from pagefleet_gateway.measuring.metrics import Metrics
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.picker import Picker


def gateway_metrics() -> Metrics:
    ledger = Ledger()
    picker = Picker(State(), ledger, random.Random(1))
    return Metrics(ledger, Holding(picker, time.monotonic, lambda _: None))
