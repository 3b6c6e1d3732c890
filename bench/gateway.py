"""The gateway, measured: beside an engine without anything in between, and beside other proxies and routers.

    python bench/gateway.py --make-peers          # once: nginx (unpacked, not installed), vllm-router, sglang-router
    python bench/gateway.py [PART ...] [--quick] [--check] [--json bench/results/gateway.json]

Parts: latency, latency-1000, saturation, streams, picks, split, stalls, many-pods, pauses, idle, churn, churn-streams, kills, rollback (needs root: a real control plane). All of them take
about ten minutes, a minute and a half with `--quick`. `--check` exits 1 when a target is missed. Load generator, stub
engines and what is measured share the machine: figures from a machine that does anything else are worth nothing, and the
program says how busy it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.gatewaybench.churn import churn, churned_streams
from bench.gatewaybench.kills import kills
from bench.gatewaybench.pauses import pauses
from bench.gatewaybench.picks import picks
from bench.gatewaybench.rollback import rollback
from bench.gatewaybench.scale import idle, many_pods
from bench.gatewaybench.show import show
from bench.gatewaybench.split import split
from bench.gatewaybench.stalls import stalls
from bench.gatewaybench.streams import streams
from bench.gatewaybench.systems import make_peers
from bench.gatewaybench.traffic import latency, latency_at_1000, saturation
from bench.harness.parts import Verdict, measure, options

PARTS: dict[str, Callable[[bool], Mapping[str, Any]]] = {
    "latency": latency,
    "latency-1000": latency_at_1000,
    "saturation": saturation,
    "streams": streams,
    "picks": picks,
    "split": split,
    "stalls": stalls,
    "many-pods": many_pods,
    "pauses": pauses,
    "idle": idle,
    "churn": churn,
    "churn-streams": churned_streams,
    "kills": kills,
    "rollback": rollback,
}


# Numbers of streams that Envoy alone carries on two cores; with 1,000 it lacks cores, and its own scatter is tens of ms.
STREAMS = ("250", "500")
# A ratio, because the time itself is the machine's. All pods were scored once: then it was 40 for short prompts, and 15 for long ones.
MAX_PICK_RATIO = 5.0


# What stalls picks when the gateway begins, and when the API server has forgotten what it sent: no targets.
AT_START = ("first pods", "listed again")


def verdicts(results: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """List the measured values and the targets: (name, value, "<=" or ">=", limit)."""
    rows: list[Verdict] = []
    if ours := results.get("latency", {}).get("pagefleet"):
        rows.append(("added latency p50, ms, at 500 requests/s", ours["added"]["p50"], "<=", 2.0))
        rows.append(("added latency p95, ms, at 500 requests/s", ours["added"]["p95"], "<=", 5.0))
        rows.append(("failed or unanswered", ours["failed"] + ours["unanswered"], "<=", 0))
    if ours := results.get("latency-1000", {}).get("pagefleet"):
        rows.append(("added latency p95, ms, at 1,000 requests/s", ours["added"]["p95"], "<=", 3.0))
        rows.append(("failed or unanswered, at 1,000 requests/s", ours["failed"] + ours["unanswered"], "<=", 0))
    if ours := results.get("saturation", {}).get("pagefleet"):
        rows.append(("saturation, requests/s", ours["perSecond"], ">=", 1500.0))
    for count in STREAMS:
        if systems := results.get("streams", {}).get(count):
            more = systems["pagefleet"]["ms"]["p95"] - systems["envoy"]["ms"]["p95"]
            rows.append((f"time between tokens p95, ms more than Envoy alone, {count} streams", more, "<=", 1.0))
    if few := results.get("picks", {}).get("4 pods"):
        for name, many in results["picks"]["1000 pods"].items():
            ratio = many["p50"] / few[name]["p50"]
            rows.append((f"a pick with 1,000 pods over one with 4, {name} prompts", ratio, "<=", MAX_PICK_RATIO))
    if "split" in results:
        rows.append(("prefix hits under a 90/10 split over unsplit", results["split"]["ratio"], ">=", 0.95))
    for name, ours in results.get("stalls", {}).items():
        limit = 25.0 if name.startswith("body") else 10.0
        rows.append((f"picks stalled, ms: {name}", ours["stall"], "<=", limit))
    for name, ours in results.get("many-pods", {}).items():
        if isinstance(ours, Mapping) and name not in AT_START:
            rows.append((f"picks stalled, ms, {results['many-pods']['pods']} pods: {name}", ours["stall"], "<=", 10.0))
    if ours := results.get("pauses"):
        lost = sum(one["failed"] + one["unanswered"] for one in ours["runs"])
        rows.append(
            (f"failed at 1,000 requests/s over pauses of the picker of {ours['pauseSeconds']} s", lost, "<=", 0)
        )
    if "idle" in results:
        rows.append(("cores of the picker at rest, 100 pods", results["idle"]["cores"], "<=", 0.1))
    if "churn" in results:
        lost = results["churn"]["failed"] + results["churn"]["unanswered"]
        rows.append((f"failed over {results['churn']['kills']} kills and as many weight changes", lost, "<=", 0))
    if streams := results.get("churn-streams"):
        lost = streams["lost"] + streams["unanswered"]
        rows.append((f"requests lost before their first token, {streams['kills']} kills two at a time", lost, "<=", 0))
        rows.append(("streams that ended short as if they were whole", streams["endedShort"], "<=", 0))
        spared = streams["cut"] - streams["inFlightWhenKilled"]
        rows.append(("streams cut off, more than were in the killed engines", spared, "<=", 0))
    if "kills" in results:
        lost = results["kills"]["failed"]
        rows.append(
            (f"failed over {results['kills']['kills']} kills of a gateway, tried again elsewhere", lost, "<=", 0)
        )
    if "ms" in results.get("rollback", {}):
        rows.append(("rollback: write to last canary request p99, ms", results["rollback"]["ms"]["p99"], "<=", 1000.0))
        rows.append(("failed during rollbacks", results["rollback"]["failed"], "<=", 0))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="The gateway, measured.")
    parser.add_argument("--make-peers", action="store_true", help="get nginx and the routers, and end")
    given = options(parser, PARTS, "small sizes, about a minute and a half")
    if given.make_peers:
        make_peers()
        return 0
    disturbed = "the figures of latency, saturation and streams are worth nothing"
    return measure(given, PARTS, verdicts, show, disturbed)


if __name__ == "__main__":
    raise SystemExit(main())
