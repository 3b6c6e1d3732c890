"""The four dashboards, by what somebody asks: how is the fleet, this service, this rollout, these engines.

Decides which panels a dashboard has.
Never computes what a recording rule computes already.
"""

from __future__ import annotations

from pagefleet_observability.dashboards.engine import ENGINE
from pagefleet_observability.dashboards.fleet import FLEET
from pagefleet_observability.dashboards.rollout import ROLLOUT
from pagefleet_observability.dashboards.service import SERVICE

DASHBOARDS = (FLEET, SERVICE, ROLLOUT, ENGINE)
