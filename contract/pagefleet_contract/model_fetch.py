"""What the fetching container of an engine pod tells while the engine has not started: gauges on the engine's port and path, bytes of
the model, those that are there, and the speed of the last minute. The operator makes a condition of them. Data."""

from __future__ import annotations

CONTAINER = "fetch"  # in an engine pod, before its engine
BYTES = "pagefleet_model_bytes"
FETCHED_BYTES = "pagefleet_model_fetched_bytes"
BYTES_PER_SECOND = "pagefleet_model_fetch_bytes_per_second"
EXIT_AGAIN = 75  # sysexits.h EX_TEMPFAIL: the next start goes on where this one ended
