"""A fleet whose picker another gateway asks (other_envoy.py), over mutual TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.gateway.fleet import Fleet
from support.gateway.other_envoy import OtherEnvoy

from pagefleet_gateway.fronts.ext_proc_tls import Pair, self_signed

PICKER, GATEWAY = self_signed(["localhost"]), self_signed(["gateway"])
CHAT = {"model": "smol", "messages": [{"role": "user", "content": "hello"}]}


def options(folder: Path) -> dict[str, Any]:
    """Return the settings of a gateway with a picker's port that demands the certificate GATEWAY."""
    for name, pem in (("tls.crt", PICKER.chain), ("tls.key", PICKER.key), ("ca.crt", GATEWAY.chain)):
        (folder / name).write_bytes(pem)
    return {"picker_port": 0, "picker_tls_folder": folder, "picker_client_ca": folder / "ca.crt"}


def other(fleet: Fleet, folder: Path, own: Pair | None = GATEWAY, bodies: str = "FULL_DUPLEX_STREAMED") -> OtherEnvoy:
    """Return the gateway in front that knows the pods which serve now."""
    assert fleet.gateway.picker_port is not None
    pods = [pod.address for pod in fleet.serving()]
    return OtherEnvoy(folder, fleet.gateway.picker_port, pods, PICKER, own, bodies)
