"""DNS for Services: dnsmasq on the node's address, and a watcher that keeps its records.

`python -m pagefleet_local.node.dns KUBECONFIG FOLDER` runs the watcher: one hosts file per Service below FOLDER, which
dnsmasq reads again by inotify whenever one changes. Cluster Services resolve to their ClusterIP, headless ones to
the ready addresses of their Endpoints. Names outside the cluster are refused: nothing in the fleet asks for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import client, config, watch

from pagefleet_local.base.paths import Layout
from pagefleet_local.base.processes import Daemon

DOMAIN = "cluster.local"
WATCH_SECONDS = 240
BACKOFF_SECONDS = 1.0


def start(layout: Layout) -> list[Daemon]:
    """dnsmasq and the watcher as daemons of the cluster."""
    folder = layout.state / "dns"
    folder.mkdir(parents=True, exist_ok=True)
    server = Daemon(layout, "dnsmasq")
    server.start(
        [
            "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--no-poll",
            "--user=root", "--pid-file=", "--bind-interfaces", "--except-interface=lo",
            f"--listen-address={layout.dns_ip}", f"--local=/{DOMAIN}/", f"--hostsdir={folder}", "--local-ttl=2",
            "--log-facility=-",
        ]
    )  # fmt: skip
    server.wait(lambda: True, timeout=5)
    watcher = Daemon(layout, "dns-watcher")
    watcher.start([sys.executable, "-m", "pagefleet_local.node.dns", str(layout.kubeconfig), str(folder)])
    watcher.wait(lambda: (folder / "default.kubernetes").exists(), timeout=60)
    return [server, watcher]


def records(service: dict[str, Any], addresses: list[str]) -> str:
    """The hosts file of one Service. `addresses` are its ready endpoints (used when it is headless)."""
    metadata, spec = service["metadata"], service["spec"]
    cluster_ip = spec.get("clusterIP") or ""
    targets = addresses if cluster_ip in ("", "None") else [cluster_ip]
    name = f"{metadata['name']}.{metadata['namespace']}.svc"
    return "".join(f"{address} {name}.{DOMAIN} {name}\n" for address in sorted(targets))


def ready_addresses(endpoints: dict[str, Any]) -> list[str]:
    return [entry["ip"] for subset in endpoints.get("subsets") or [] for entry in subset.get("addresses") or []]


class Records:
    """The folder of hosts files, kept equal to the Services and Endpoints seen."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._services: dict[str, dict[str, Any]] = {}
        self._addresses: dict[str, list[str]] = {}

    def service(self, kind: str, document: dict[str, Any]) -> None:
        key = _key(document)
        if kind == "DELETED":
            self._services.pop(key, None)
        else:
            self._services[key] = document
        self._write(key)

    def endpoints(self, kind: str, document: dict[str, Any]) -> None:
        key = _key(document)
        self._addresses[key] = [] if kind == "DELETED" else ready_addresses(document)
        self._write(key)

    def keep(self, keys: set[str]) -> None:
        """After a fresh list: forget Services that are gone."""
        for key in set(self._services) - keys:
            self._services.pop(key)
            self._write(key)

    def _write(self, key: str) -> None:
        service, path = self._services.get(key), self._folder / key
        text = records(service, self._addresses.get(key, [])) if service else ""
        if not text:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_text() != text:
            path.write_text(text)


def _key(document: dict[str, Any]) -> str:
    return f"{document['metadata']['namespace']}.{document['metadata']['name']}"


async def follow(kubeconfig: str, folder: Path) -> None:
    """List and watch Services and Endpoints for ever."""
    await config.load_kube_config(kubeconfig)
    async with client.ApiClient() as api:
        core, kept = client.CoreV1Api(api), Records(folder)
        await asyncio.gather(
            _loop(api, core.list_endpoints_for_all_namespaces, kept.endpoints, None),
            _loop(api, core.list_service_for_all_namespaces, kept.service, kept.keep),
        )


async def _loop(api: Any, lister: Any, apply: Any, keep: Any) -> None:
    while True:
        with contextlib.suppress(client.ApiException, aiohttp.ClientError, TimeoutError, OSError):
            listed = await lister()
            documents = [api.sanitize_for_serialization(item) for item in listed.items]
            for document in documents:
                apply("ADDED", document)
            if keep:
                keep({_key(document) for document in documents})
            async with watch.Watch() as stream:
                version = listed.metadata.resource_version
                async for event in stream.stream(lister, resource_version=version, timeout_seconds=WATCH_SECONDS):
                    apply(event["type"], event["raw_object"])
        await asyncio.sleep(BACKOFF_SECONDS)


if __name__ == "__main__":
    asyncio.run(follow(sys.argv[1], Path(sys.argv[2])))
