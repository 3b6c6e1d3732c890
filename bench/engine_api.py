"""What a streamed token costs in the engine's API process, the ceiling of any fast device: processor time, with a stub as the runner.

    python bench/engine_api.py [PART ...] [--quick] [--check] [--json bench/results/engine_api.json]

Parts are protocols: chat, completions, responses, messages. 64 streams get a token of an English text every 20 ms each, and send
their trailers, as behind the gateway. Counted are user and system time of the API process alone, and its writes: with fewer than one
a token, several tokens of a stream left together, which happens where the machine is too busy to run the process at every step.
A minute and a half, half a minute with `--quick`. `--check` exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "contract"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kernels"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "engine"))

from bench.apibench.streams import BODIES, measured
from bench.harness.parts import Parts, Verdict, measure, options

STREAMS, TOKENS, QUICK_TOKENS = 64, 600, 150
MOST_MICROSECONDS = 60.0


def run(kind: str, quick: bool) -> Mapping[str, Any]:
    return asyncio.run(measured(kind, STREAMS, QUICK_TOKENS if quick else TOKENS))


def show(part: str, figures: Mapping[str, Any]) -> None:
    print(
        f"{part}: {figures['us']} us of the API process a token ({figures['user']} in user mode), {figures['writes']} writes,"
        f" {figures['bytes']} bytes"
    )


def verdicts(results: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    return [
        (f"{part}: us a streamed token", figures["us"], "<=", MOST_MICROSECONDS) for part, figures in results.items()
    ]


PARTS: Parts = {kind: partial(run, kind) for kind in BODIES}


def main() -> int:
    parser = argparse.ArgumentParser(description="What a streamed token costs in the API process.")
    given = options(parser, PARTS, "a quarter of the tokens")
    return measure(given, PARTS, verdicts, show, "the figures are a little too high")


if __name__ == "__main__":
    raise SystemExit(main())
