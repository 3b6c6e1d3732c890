"""Network namespaces for tests, with root or without: the skip where a machine allows none says what is then untested."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def unshare(*kinds: str) -> list[str]:
    """The words that run a program as root in namespaces of its own."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, *kinds]


def possible() -> bool:
    """Whether this machine lets us make network namespaces."""
    if not shutil.which("ip") or not shutil.which("unshare"):
        return False
    return not subprocess.run([*unshare("--net"), "true"], capture_output=True).returncode


def needed(untested: str) -> pytest.MarkDecorator:
    """Mark tests that need them; `untested` is what nothing else tests."""
    return pytest.mark.skipif(not possible(), reason=f"no network namespaces here: untested is {untested}")
