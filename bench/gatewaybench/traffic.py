"""Latency and saturation: the same load through each system, and past all of them to an engine itself."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.gatewaybench.systems import ROOT, SYSTEMS, Running, System, environment, start

ENGINE_PORTS = (19101, 19102, 19103, 19104, 19105, 19106, 19107, 19108)
PORT = 19080
RATE = 500.0

Figures = dict[str, object]


@contextmanager
def engines(ports: Sequence[int] = ENGINE_PORTS, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Stub engines in one process, until the block ends. `arguments`: further ones of stub.py."""
    command = [sys.executable, "-m", "bench.gatewaybench.stub", "--ports", ",".join(map(str, ports)), *arguments]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE)
    try:
        if process.stdout is None or process.stdout.readline().strip() != b"serving":
            raise RuntimeError("the stub engines did not start")
        yield process
    finally:
        process.terminate()
        process.wait(10)


def load(**plan: object) -> Mapping[str, object]:
    command = [sys.executable, "-m", "bench.gatewaybench.load", json.dumps(plan)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=180, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the load generator ended with {done.returncode}: {done.stderr[-600:]}")
    results: dict[str, object] = json.loads(done.stdout)
    return results


class NotThere(RuntimeError):
    """A system is not installed, or did not start."""


@contextmanager
def warmed(system: System) -> Iterator[Running]:
    """Run the system in front of ENGINE_PORTS until the block ends. Its processor time counts after its first connections.
    Raises NotThere."""
    if why := system.missing():
        raise NotThere(why)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            running = start(system, PORT, ENGINE_PORTS, Path(folder))
        except RuntimeError as error:
            raise NotThere(str(error)) from error
        try:
            load(port=running.port, path=system.path, seconds=0.5, rate=50.0, warm=0.1)
            running.mark()
            yield running
        finally:
            running.stop()


def through(system: System, **plan: object) -> Figures:
    """Send the load through one system, and measure the cores that it used."""
    try:
        with warmed(system) as running:
            results = dict(load(port=running.port, path=system.path, **plan))
            return {**results, "cores": round(running.cores(), 2)}
    except NotThere as error:
        return {"skipped": str(error)}


def latency(quick: bool) -> Figures:
    """Measure the seconds that a system adds to the first byte at 500 requests/s: long shared prompts, one token."""
    return _latency(RATE, SYSTEMS, quick)


def latency_at_1000(quick: bool) -> Figures:
    """Measure the same at 1,000 requests/s, which the picker's one thread has to carry, of the gateway and of Envoy alone."""
    return _latency(2 * RATE, [one for one in SYSTEMS if one.name in ("direct", "pagefleet", "envoy")], quick)


def _latency(rate: float, systems: Sequence[System], quick: bool) -> Figures:
    with engines():
        results = {one.name: through(one, rate=rate, seconds=4.0 if quick else 12.0) for one in systems}
    return {"rate": rate, **added(results, "ttft")}


def saturation(quick: bool) -> Figures:
    """Measure the requests answered a second for 64 clients, each of which asks again at once."""
    with engines():
        results = {one.name: through(one, clients=64, seconds=3.0 if quick else 8.0) for one in SYSTEMS}
    return {
        name: figures if "skipped" in figures else {key: figures[key] for key in ("perSecond", "failed", "cores")}
        for name, figures in results.items()
    }


def added(results: Mapping[str, Figures], what: str) -> Figures:
    """Return each system's quantiles of `what`, in ms, and their differences from the engine's own."""
    base = results["direct"][what]
    shown: Figures = {}
    for name, figures in results.items():
        if "skipped" in figures:
            shown[name] = figures
            continue
        own = figures[what]
        if not isinstance(own, dict) or not isinstance(base, dict):
            raise TypeError("the load generator's answer has no quantiles")
        milliseconds = {share: round(own[share] * 1e3, 3) for share in ("p50", "p95", "p99")}
        above = {share: round((own[share] - base[share]) * 1e3, 3) for share in ("p50", "p95", "p99")}
        keys = ("answered", "failed", "statuses", "unanswered", "cores", "late")
        others = {key: figures[key] for key in keys if key in figures}
        shown[name] = {"ms": milliseconds, "added": above, **others}
    return shown
