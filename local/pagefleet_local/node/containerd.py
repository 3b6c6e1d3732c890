"""containerd with root, state and socket of its own, so that it lives beside any other container engine."""

from __future__ import annotations

import os
import subprocess

from pagefleet_local.assets import debian
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.processes import Daemon, StartFailed
from pagefleet_local.node.pause import IMAGE as PAUSE_IMAGE
from pagefleet_local.node.pause import archive

# `restrict_oom_score_adj`: a machine may lack CAP_SYS_RESOURCE, and every sandbox would die of lowering its score.
CONFIGURATION = """\
version = 2
root = "{state}/containerd"
state = "{run}/containerd/state"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{run}/containerd/containerd.sock"
[ttrpc]
  address = "{run}/containerd/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{state}/cni/bin"
    conf_dir = "{state}/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = false
"""


def start(layout: Layout) -> Daemon:
    socket_folder = layout.containerd_socket.parent
    socket_folder.mkdir(parents=True, exist_ok=True, mode=0o711)
    configuration = layout.state / "containerd.toml"
    configuration.write_text(
        CONFIGURATION.format(state=layout.state, run=layout.run, pause=PAUSE_IMAGE, runc=debian.tool("runc"))
    )
    binary = debian.tool("containerd")
    daemon = Daemon(layout, "containerd")
    path = os.pathsep.join([str(binary.parent), str(debian.tool("runc").parent), os.environ.get("PATH", os.defpath)])
    daemon.start([binary, "--config", configuration], {"PATH": path})
    daemon.wait(lambda: ctr(layout, "version").returncode == 0, timeout=60)
    if PAUSE_IMAGE not in ctr(layout, "images", "list", "-q").stdout:
        imported = ctr(layout, "images", "import", str(archive()))
        if imported.returncode:
            raise StartFailed(f"the pause image cannot be imported: {imported.stderr.strip()}")
    return daemon


def ctr(layout: Layout, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One `ctr` command in the kubelet's namespace."""
    command = [str(debian.tool("ctr")), "--address", str(layout.containerd_socket), "-n", "k8s.io", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
