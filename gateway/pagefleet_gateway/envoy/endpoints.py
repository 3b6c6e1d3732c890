"""Writes the pods for Envoy (EDS from a file) and confirms to the state which of them Envoy has loaded.

Never chooses: the file has every pod with an address, ready or not, so Envoy knows a pod before it becomes ready. Prefill pods are
not in it: requests come to them from decode pods.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Iterable
from pathlib import Path

from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.cluster.steps import parts
from pagefleet_gateway.envoy.clusters import ENGINES, METADATA, TYPE
from pagefleet_gateway.envoy.process import Admin, AdminError

log = logging.getLogger(__name__)


class Endpoints:
    """Writes the file on every change of the pods. A change that comes while Envoy loads another is written next."""

    def __init__(self, state: State, file: Path) -> None:
        self._state = state
        self._file = file
        self._versions = itertools.count(1)
        self._texts: dict[str, tuple[Pod, str]] = {}  # the JSON of the pods that have not changed, by uid
        self.loaded = False  # whether Envoy has loaded any version

    def write(self) -> None:
        """Write the file at once."""
        self._replace(json.dumps(endpoints_discovery(*self._next())))

    async def write_in_steps(self) -> tuple[str, tuple[Pod, ...]]:
        """Write the same, and let picks have their turns: the file of 10,000 pods takes 100 ms. Returns its version and the pods in it."""
        version, pods = self._next()
        by_address: dict[str, Pod] = {}
        before, self._texts = self._texts, {}
        for part in parts(pods):
            for pod in part:
                _prefer(by_address, pod)
                known = before.get(pod.uid)
                self._texts[pod.uid] = known if known and known[0] is pod else (pod, json.dumps(_endpoint(pod)))
            await asyncio.sleep(0)
        head, tail = json.dumps(endpoints_discovery(version, ())).split("[]")
        texts: list[str] = []
        for part in parts(by_address.values()):
            texts.extend(self._texts[pod.uid][1] for pod in part)
            await asyncio.sleep(0)
        await asyncio.to_thread(lambda: self._replace(f"{head}[{', '.join(texts)}]{tail}"))
        return version, pods

    def _next(self) -> tuple[str, tuple[Pod, ...]]:
        """Return the next file's version and its pods. A change of the pods from now on is written after it."""
        self._state.pods_changed.clear()
        return f"v{next(self._versions)}", tuple(pod for pod in self._state.pods if not pod.prefills)

    def _replace(self, text: str) -> None:
        temporary = self._file.with_suffix(".new")
        temporary.write_text(text)
        temporary.replace(self._file)

    async def follow(self, admin: Admin) -> None:
        """Keep Envoy's endpoints equal to the state's pods until cancelled. Envoy must be running."""
        while True:
            version, pods = await self.write_in_steps()
            if await self._loaded(admin, version):
                self.loaded = True
                for _ in self._state.confirm_in_steps(pods):
                    await asyncio.sleep(0)
                await self._state.pods_changed.wait()

    async def _loaded(self, admin: Admin, version: str) -> bool:
        """Wait until Envoy has loaded `version`; false when it has not within 5 s (the file is then written again)."""
        delay = 0.002
        for _ in range(60):
            try:
                if await admin.text_stat(f"cluster.{ENGINES}.version_text") == version:
                    return True
            except AdminError as error:
                log.info("%s", error)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 0.1)
        log.warning("Envoy has not loaded endpoints %s within 5 s: writing the file again", version)
        return False


def endpoints_discovery(version: str, pods: Iterable[Pod]) -> dict[str, object]:
    """Build the file's content: one ClusterLoadAssignment with each address once and its pod as metadata."""
    by_address: dict[str, Pod] = {}
    for pod in pods:
        _prefer(by_address, pod)
    return {
        "version_info": version,
        "resources": [
            {
                "@type": TYPE + "config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": ENGINES,
                "endpoints": [{"lb_endpoints": [_endpoint(pod) for pod in by_address.values()]}],
            }
        ],
    }


def _prefer(by_address: dict[str, Pod], pod: Pod) -> None:
    """Add the pod, unless another with its address is ready and it is not."""
    known = by_address.get(pod.address)
    if known is None or (known.ready, known.uid) < (pod.ready, pod.uid):
        by_address[pod.address] = pod


def _endpoint(pod: Pod) -> dict[str, object]:
    host, _, port = pod.address.rpartition(":")
    origin = {"namespace": pod.namespace, "service": pod.service, "revision": pod.revision, "pod": pod.name}
    return {
        "endpoint": {"address": {"socket_address": {"address": host.strip("[]"), "port_value": int(port)}}},
        "metadata": {"filter_metadata": {METADATA: origin}},
    }
