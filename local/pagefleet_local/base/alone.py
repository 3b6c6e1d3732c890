"""One program at a time brings a cluster up or takes it down: a second one would end what the first has just started."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

from pagefleet_local.base.paths import Layout
from pagefleet_local.base.preflight import Refused

CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


@contextlib.contextmanager
def alone(layout: Layout) -> Iterator[None]:
    """Hold the cluster. Raises Refused while another program does.

    A socket with an abstract name is no file: the kernel lets go of it when its holder ends, also by SIGKILL, and nothing is left behind.
    """
    name = f"\0pagefleet-local {layout.state}"
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(name)
        except OSError:
            raise Refused(
                f"another pagefleet-local{_holder(name)} starts this cluster, plays on it or takes it down at the moment: "
                "wait for its end, or interrupt it (Ctrl-C)"
            ) from None
        held.listen()
        yield


def _holder(name: str) -> str:
    """The process that listens at `name`, in words; "" where it has begun or ended just now."""
    with socket.socket(socket.AF_UNIX) as asked:
        try:
            asked.connect(name)
        except OSError:
            return ""
        credentials = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return f" (pid {CREDENTIALS.unpack(credentials)[0]})"
