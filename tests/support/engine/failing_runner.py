"""The engine process with faults that requests ask for by their bias of token 5: `python -m support.engine.failing_runner`
in place of the engine's own module. No test here."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

from pagefleet_engine.core.sequence import TokenSequence
from pagefleet_engine.runner import process
from pagefleet_engine.runner.common.sampling import Sampler

RAISES, KILLS = 66, 67
TESTS = Path(__file__).parents[2]
FIRST = f"import pagefleet_engine.api.backend.engine as engine; engine.RUNNER = {__name__!r}"
"""Python that runs before the API process, for `serving` and `command`."""


def environment() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))}


def fault(bias: float, after: int = 0) -> dict[str, object]:
    """Parameters of a request that fails when `after` of its tokens have been chosen."""
    return {"logit_bias": {"5": bias}, "seed": after}


def main() -> int:
    real = Sampler.adjust

    def adjust(self: Sampler, row: torch.Tensor, answer: TokenSequence) -> None:
        sampling = answer.request.sampling
        bias = dict(sampling.logit_bias).get(5)
        if answer.generated == sampling.seed and bias == RAISES:
            raise RuntimeError("the request asked for it")
        if answer.generated == sampling.seed and bias == KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, row, answer)

    Sampler.adjust = adjust  # type: ignore[method-assign]
    return process.main()


if __name__ == "__main__":
    sys.exit(main())
