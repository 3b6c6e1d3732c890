"""What all tests rely on: examples of Hypothesis without a time limit, because another process may have the processor meanwhile,
and a SIGINT that ends programs, which a shell ignores for what it starts in the background."""

from __future__ import annotations

import signal

from hypothesis import settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("pagefleet", deadline=None)
if settings.get_current_profile_name() == "default":  # else another was chosen: tests/mutation has its own
    settings.load_profile("pagefleet")
