"""Loopback addresses that no other test process uses, for servers whose port the contract fixes."""

from __future__ import annotations

import os

MAX_ADDRESSES = 2  # of a process; a process id has 22 bits, and 127.128.0.0/9 has 23


def own_address(number: int = 0) -> str:
    """Return this process's loopback address of a number below MAX_ADDRESSES.

    Tests that run side by side (pytest-xdist) can then listen at the same port.
    """
    if not 0 <= number < MAX_ADDRESSES:
        raise ValueError(f"number must be from 0 to {MAX_ADDRESSES - 1}, not {number}")
    low = os.getpid() | number << 22
    return f"127.{128 | low >> 16}.{low >> 8 & 255}.{low & 255}"
