"""Protects what a user has in a local cluster from `make up`: a cluster that is slow for a moment is no unfinished run."""

from __future__ import annotations

import os
import signal
import threading

from pagefleet_local.base.processes import Daemon
from pagefleet_local.lifecycle.up import Cluster, Options, up

SLOW_SECONDS = 5.0  # more than one question to the API server waits for


def test_a_cluster_that_is_slow_to_answer_is_not_taken_down(control_plane: Cluster) -> None:
    """On a busy machine `make up` deleted a running fleet with every service in it, and started an empty one."""
    server = Daemon(control_plane.layout, "kube-apiserver").pid()
    assert server is not None
    os.kill(server, signal.SIGSTOP)
    going_on = threading.Timer(SLOW_SECONDS, os.kill, (server, signal.SIGCONT))
    going_on.start()
    try:
        assert up(Options(layout=control_plane.layout)) == control_plane
    finally:
        going_on.join()
    assert Daemon(control_plane.layout, "kube-apiserver").pid() == server
