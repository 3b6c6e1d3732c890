"""`pagefleet`, also `kubectl pagefleet`: shows InferenceServices and rollouts, requests actions, measures and plans.

Writes only the annotation of an action; the operator decides about the action.
"""

from __future__ import annotations

import typer

from pagefleet_cli.bench.command import bench
from pagefleet_cli.export import export
from pagefleet_cli.plan.command import plan_command
from pagefleet_cli.rollout import commands as rollout
from pagefleet_cli.simulate import simulate
from pagefleet_cli.status import status

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
