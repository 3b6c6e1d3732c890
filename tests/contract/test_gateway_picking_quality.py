"""Protects the picker's choices as users feel them: time to the first token in a simulated fleet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_p95_beats_round_robin_and_the_published_scoring() -> None:
    command = [sys.executable, str(ROOT / "bench" / "gateway_picking.py"), "shared", "--quick", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
