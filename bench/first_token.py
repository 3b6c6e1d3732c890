"""The first token, measured: whether the gateway's time to it is the client's, whether any stream is lost before it, and what
holding an answer until then costs.

    python bench/first_token.py [PART ...] [--quick] [--check] [--json bench/results/first_token.json]

Parts: truth (four kinds of engine: headers with the token, at once, at once with an event that names the role, at once with
comments), kills (1,000 engines killed after their headers and before their token, two gateways), latency and streams (the
gateway beside itself without the filter that holds answers). About eight minutes, one and a half with `--quick`. `--check`
exits 1 when a target is missed. Everything shares the machine, and the program says how busy it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.firsttokenbench.cost import latency, streams
from bench.firsttokenbench.kills import kills
from bench.firsttokenbench.truth import truth
from bench.gatewaybench.show import show
from bench.harness.parts import Verdict, measure, options

PARTS: dict[str, Callable[[bool], Mapping[str, Any]]] = {
    "truth": truth,
    "kills": kills,
    "latency": latency,
    "streams": streams,
}


def verdicts(results: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """What was measured, and the targets: (name, value, "<=" or ">=", limit)."""
    rows: list[Verdict] = [
        (
            f"headers {kind}: p95 of |gateway - client| over the larger of 5 ms and 5 %",
            figures["errorOverLimit"],
            "<=",
            1.0,
        )
        for kind, figures in results.get("truth", {}).items()
    ]
    if ours := results.get("kills"):
        rows.append(
            (f"requests whose engine was killed, over {ours['kills']} kills", ours["retried"], ">=", ours["kills"] / 4)
        )
        rows.append((f"streams lost over {ours['kills']} kills", ours["failed"] + ours["unanswered"], "<=", 0))
    if ours := results.get("latency", {}).get("pagefleet"):
        rows.append(("added latency p95, ms, at 500 requests/s", ours["added"]["p95"], "<=", 5.0))
        rows.append(("failed or unanswered", ours["failed"] + ours["unanswered"], "<=", 0))
    for count, systems in results.get("streams", {}).items():
        cost = systems["pagefleet"]["ms"]["p95"] - systems["unheld"]["ms"]["p95"]
        rows.append((f"time between tokens p95 that holding adds, ms, {count} streams", round(cost, 3), "<=", 1.0))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="The first token, measured.")
    given = options(parser, PARTS, "small sizes, about a minute and a half")
    return measure(given, PARTS, verdicts, show, "the figures of truth, latency and streams are worth nothing")


if __name__ == "__main__":
    raise SystemExit(main())
