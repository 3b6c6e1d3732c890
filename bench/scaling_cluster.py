"""Scaling on the real node: shipped images and manifests, a real kubelet, real engines in small settings.

    python bench/scaling_cluster.py [wake burst burst-spare zero zero-spare down node] [--streams 200] [--check] [--json FILE]

Needs root and what `make up` needs; starts the fleet, and takes it down again unless it ran before. Times are of a
machine that engines, gateway, control plane and clients share: they show the order of events and compare with each
other; they do not predict those of a GPU node. `--check` exits 1 when a stream is cut, when the first token at zero comes
more than a second after the start-up time, or when a woken spare is not sooner than the replica it stands in for.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from scalingbench.field import Field, on_fleet
from scalingbench.parts import PARTS, Figures

LATE_SECONDS = 1.0


async def measured(field: Field, names: list[str], streams: int) -> dict[str, Figures]:
    results: dict[str, Figures] = {}
    for name in names:
        results[name] = await PARTS[name](field, streams)
        _show({name: results[name]})
    return results


def failures(results: Mapping[str, Figures]) -> Iterator[str]:
    for part, figures in results.items():
        for name, value in figures.items():
            if name.split(": ")[-1] in ("truncated", "refused") and value:
                yield f"{part}: {value} streams were {name}"
    zero, wake, node = (results.get(name, {}) for name in ("zero", "wake", "node"))
    late = zero.get("first token after the start-up time, s", 0.0)
    if isinstance(late, str) or not late <= LATE_SECONDS:
        yield f"zero: the first token came {late} s after the start-up time"
    if wake and not float(wake["scale-up to a woken spare, s"]) < float(wake["scale-up to the new replica, s"]):
        yield "wake: the spare was not sooner"
    if node.get("fewest ready replicas meanwhile", 1) == 0:
        yield "node: for a while no replica was ready"


def _show(results: Mapping[str, Figures]) -> None:
    for part, figures in results.items():
        for name, value in figures.items():
            print(f"{part:12} {name:44} {value}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--streams", type=int, default=200, help="open when a replica is taken away")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    unknown = sorted(set(given.parts) - set(PARTS))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    before = os.getloadavg()
    results = on_fleet(lambda field: measured(field, given.parts, given.streams))
    print(f"load of the machine: {before[0]:.1f} before, {os.getloadavg()[0]:.1f} after, {os.cpu_count()} processors")
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({"load": before, "parts": results}, indent=1) + "\n")
    missed = list(failures(results))
    for line in missed:
        print(f"MISSED {line}")
    return int(given.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
