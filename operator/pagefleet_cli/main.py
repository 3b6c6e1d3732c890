"""`pagefleet`, also `kubectl pagefleet`: shows InferenceServices and rollouts, requests actions, measures and plans.

Writes only the annotation of an action; the operator decides about the action.
"""

from __future__ import annotations

import contextlib
import signal
from types import FrameType

import typer

from pagefleet_cli.bench.command import bench
from pagefleet_cli.export import export
from pagefleet_cli.plan.command import plan_command
from pagefleet_cli.rollout import commands as rollout
from pagefleet_cli.simulate import simulate
from pagefleet_cli.status import status

# A time limit, and a terminal that is closed (Windows has no such signal).
ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, help=__doc__)
app.command()(status)
app.command()(export)
app.command()(bench)
app.command()(simulate)
app.command("plan")(plan_command)
app.add_typer(rollout.app, name="rollout")


@app.callback()
def root() -> None:
    """LLM inference fleets on Kubernetes."""
    with contextlib.suppress(ValueError):  # a test may call this in another thread, which gets no signals
        for number in ENDS:
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    """End as by sys.exit. The library of Kubernetes' client has written the kubeconfig's certificate and private key into temporary files,
    and removes them at an exit. A process that a signal ends would leave them behind."""
    raise SystemExit(128 + number)
