"""Hypothesis' settings of every test: no time limit for one example, because another process may have the processor meanwhile."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("pagefleet", deadline=None)
if settings.get_current_profile_name() == "default":  # else another was chosen: tests/mutation has its own
    settings.load_profile("pagefleet")
