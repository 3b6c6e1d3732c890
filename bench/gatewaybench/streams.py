"""Streams: the time that a system adds between two tokens when very many answers are under way.

Engines and reader are a compiled program (wire/), made on first use and kept in the cache: everything shares the
machine, and in Python the two need more of it than the measured system. Past all systems (`direct`) the streams go to the
same engines, spread alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.gatewaybench.systems import CACHE, ONE_THREAD, SYSTEMS, Running, System
from bench.gatewaybench.traffic import ENGINE_PORTS, PORT, Figures, NotThere, added, warmed

from pagefleet_kernels.compile import compiler

SOURCES = Path(__file__).with_name("wire")
FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror")
INTERVAL = 0.02  # seconds between two tokens of a stream
APART = 0.002  # between the beginnings of two streams: 1,000 at once are another measurement
WARM = 1.0  # seconds after the last beginning that are not counted


def program() -> Path:
    """Compile the engines and the reader, and return the program. Raises RuntimeError when there is no compiler."""
    files = sorted(SOURCES.iterdir())
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files) + repr(FLAGS).encode()).hexdigest()
    built = CACHE / "bench" / f"wire-{digest[:16]}"
    if built.exists():
        return built
    path = compiler()
    if path is None:
        raise RuntimeError("streams: its engines and reader need a C++ compiler (g++)")
    built.parent.mkdir(parents=True, exist_ok=True)
    unfinished = built.with_name(f".{built.name}.{os.getpid()}")
    subprocess.run([path, *FLAGS, "-o", str(unfinished), str(SOURCES / "main.cpp")], check=True)
    unfinished.replace(built)
    return built


@contextmanager
def engines(ports: Sequence[int]) -> Iterator[subprocess.Popen[str]]:
    """Run the engines until the block ends. Their last output is then left in stdout."""
    command = [str(program()), "engines", _listed(ports), str(INTERVAL * 1e3)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None or process.stdout.readline().strip() != "serving":
            raise RuntimeError("the engines did not start")
        yield process
    finally:
        process.terminate()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def read(ports: Sequence[int], path: str, count: int, seconds: float) -> Mapping[str, object]:
    """Read `count` streams at once for `seconds`, through one port or spread over several."""
    ramp = APART * count + WARM
    tokens = round((ramp + seconds + 1.0) / INTERVAL)
    limit = ramp + APART * count + seconds + 11.0  # ten seconds for those that are late
    command = [str(program()), "read", _listed(ports), path, str(count), str(tokens)]
    command += [str(APART * 1e3), str(WARM), str(seconds), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit + 30, check=False)
    if done.returncode:
        raise RuntimeError(f"the reader ended with {done.returncode}: {done.stderr[-600:]}")
    measured: dict[str, object] = json.loads(done.stdout)
    return measured


def through(system: System, count: int, seconds: float) -> Figures:
    """Measure streams through one system, the cores that it used, and how late its engines were."""
    with engines(ENGINE_PORTS) as serving:
        try:
            with warmed(system) as running:
                playing = Running(serving, PORT)
                figures = dict(read((PORT,) if system.command else ENGINE_PORTS, system.path, count, seconds))
                used = {"cores": round(running.cores(), 2), "engineCores": round(playing.cores(), 2)}
        except NotThere as error:
            return {"skipped": str(error)}
        serving.terminate()
        late = json.loads(serving.communicate(timeout=10)[0])["late"]
        return {**figures, "readerCores": round(float(str(figures["cores"])), 2), **used, "engineLate": late}


def streams(quick: bool) -> Figures:
    """Measure the time that a system adds between two tokens of streams of 50 tokens/s, by the number of streams."""
    seconds = 3.0 if quick else 10.0
    counts = (200,) if quick else (250, 500, 1000)
    return {str(count): compared(count, seconds, SYSTEMS + ONE_THREAD * (count == counts[-1])) for count in counts}


def compared(count: int, seconds: float, systems: Sequence[System]) -> Figures:
    measured = {one.name: through(one, count, seconds) for one in systems}
    others = ("throughout", "events", "pieces", "engineCores", "readerCores", "engineLate")
    shown = added(measured, "itl")
    return {
        name: {**own, **{key: measured[name][key] for key in others}} if isinstance(own, dict) and "ms" in own else own
        for name, own in shown.items()
    }


def _listed(ports: Sequence[int]) -> str:
    return ",".join(map(str, ports))
