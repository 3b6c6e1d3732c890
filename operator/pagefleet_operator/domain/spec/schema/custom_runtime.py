"""The structure of what spec.engine says of an engine that Pagefleet does not know: runtime custom."""

from __future__ import annotations

from pagefleet_contract.engine_metrics import NUMBERS, SELECTOR
from pagefleet_operator.domain.spec.schema.fields import Schema, array, integer, record, text
from pagefleet_operator.domain.spec.schema.guard_signals import ENGINE_SIGNALS, GUARD_SIGNALS
from pagefleet_operator.domain.spec.schema.patterns import PATH

MAX_SELECTORS = 8


def _selector(description: str) -> Schema:
    return text(description, pattern=SELECTOR, longest=256)


METRICS = record(
    "What the engine's metrics page calls what Pagefleet reads, for runtime custom: NAME (its series are summed up), "
    'NAME{label="value"}, or NAME{label} for the number in that label. What is left out is not known: scaling and the '
    "guard do without it.",
    {
        "path": text("The page's path; /metrics when omitted.", pattern=PATH, longest=256),
        **{name: _selector(description) for name, description in NUMBERS.items()},
        **{name: _selector(GUARD_SIGNALS[name].histogram) for name in ENGINE_SIGNALS},
        "finished": array("Counters of requests that ended, however.", _selector("A counter."), MAX_SELECTORS),
        "failed": array("Counters of those that failed.", _selector("A counter."), MAX_SELECTORS),
    },
    ("waiting", "running"),
)

CUSTOM = {
    "command": array("The command instead of the image's, for runtime custom.", text("A word.", longest=1024), 64),
    "port": integer("The port of its HTTP server, for runtime custom. 8000 when omitted.", 1024, 65535),
    "probes": record(
        "Paths that answer 200 when all is well, for runtime custom.",
        {
            "startup": text("Once it has started; readiness when omitted.", pattern=PATH, longest=256),
            "readiness": text("While it can take requests.", pattern=PATH, longest=256),
            "liveness": text("Unless it has to be restarted; readiness when omitted.", pattern=PATH, longest=256),
        },
        ("readiness",),
    ),
    "preStop": array(
        "A command that is run in the container before it is told to stop, for runtime custom. Gateways send nothing "
        "new by then.",
        text("A word.", longest=1024),
        16,
    ),
    "metrics": METRICS,
}
