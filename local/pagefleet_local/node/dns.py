"""DNS for Services: dnsmasq on the node's address, and a watcher that keeps its records.

`python -m pagefleet_local.node.dns KUBECONFIG FOLDER` runs the watcher: one hosts file per Service below FOLDER, which
dnsmasq reads again by inotify whenever one changes. Cluster Services resolve to their ClusterIP, headless ones to
the ready addresses of their Endpoints. Names outside the cluster are refused: nothing in the fleet asks for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import client, config

from pagefleet_contract.reflector import Feed, Reflector
from pagefleet_local.base.paths import Layout
from pagefleet_local.base.preflight import DNS_PORT
from pagefleet_local.base.processes import Daemon
from pagefleet_local.controlplane.etcd import listens

DOMAIN = "cluster.local"
Document = Mapping[str, Any]


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
    server.wait(lambda: listens(DNS_PORT, layout.dns_ip), timeout=60)
    watcher = Daemon(layout, "dns-watcher")
    watcher.start([sys.executable, "-m", "pagefleet_local.node.dns", str(layout.kubeconfig), str(folder)])
    watcher.wait(lambda: (folder / "default.kubernetes").exists(), timeout=60)
    return [server, watcher]


def records(service: Document, addresses: list[str]) -> str:
    """The hosts file of one Service. `addresses` are its ready endpoints (used when it is headless)."""
    metadata, spec = service["metadata"], service["spec"]
    cluster_ip = spec.get("clusterIP") or ""
    targets = addresses if cluster_ip in ("", "None") else [cluster_ip]
    name = f"{metadata['name']}.{metadata['namespace']}.svc"
    return "".join(f"{address} {name}.{DOMAIN} {name}\n" for address in sorted(targets))


def ready_addresses(endpoints: Document) -> list[str]:
    return [entry["ip"] for subset in endpoints.get("subsets") or [] for entry in subset.get("addresses") or []]


class Records:
    """The folder of hosts files. They always have the Services and Endpoints of the cluster."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._services: dict[str, Document] = {}
        self._addresses: dict[str, list[str]] = {}

    def replace_services(self, documents: list[Document]) -> None:
        old, self._services = self._services, {_key(document): document for document in documents}
        self._write(old.keys() | self._services.keys())

    def upsert_service(self, document: Document) -> None:
        self._services[_key(document)] = document
        self._write((_key(document),))

    def remove_service(self, document: Document) -> None:
        self._services.pop(_key(document), None)
        self._write((_key(document),))

    def replace_endpoints(self, documents: list[Document]) -> None:
        old, self._addresses = self._addresses, {_key(document): ready_addresses(document) for document in documents}
        self._write(old.keys() | self._addresses.keys())

    def upsert_endpoints(self, document: Document) -> None:
        self._addresses[_key(document)] = ready_addresses(document)
        self._write((_key(document),))

    def remove_endpoints(self, document: Document) -> None:
        self._addresses.pop(_key(document), None)
        self._write((_key(document),))

    def _write(self, keys: Iterable[str]) -> None:
        """Write the hosts files that differ from the records."""
        for key in keys:
            service, path = self._services.get(key), self._folder / key
            text = records(service, self._addresses.get(key, [])) if service else ""
            if not text:
                path.unlink(missing_ok=True)
            elif not path.exists() or path.read_text() != text:
                path.write_text(text)


def _key(document: Document) -> str:
    return f"{document['metadata']['namespace']}.{document['metadata']['name']}"


async def follow(kubeconfig: str, folder: Path) -> None:
    """Follow Services and Endpoints until cancelled."""
    await config.load_kube_config(kubeconfig)
    async with client.ApiClient() as api:
        core, stored = client.CoreV1Api(api), Records(folder)
        feeds = (
            Feed(
                "Endpoints",
                core.list_endpoints_for_all_namespaces_without_preload_content,
                stored.replace_endpoints,
                stored.upsert_endpoints,
                stored.remove_endpoints,
            ),
            Feed(
                "Service",
                core.list_service_for_all_namespaces_without_preload_content,
                stored.replace_services,
                stored.upsert_service,
                stored.remove_service,
            ),
        )
        await asyncio.gather(*(Reflector(feed, aiohttp.ClientError).run() for feed in feeds))


async def _until_told(kubeconfig: str, folder: Path) -> None:
    """Follow until SIGTERM, and end by oneself then: only so the client's library removes the temporary file with the administrator's key."""
    following = asyncio.ensure_future(follow(kubeconfig, folder))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, following.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await following


if __name__ == "__main__":
    asyncio.run(_until_told(sys.argv[1], Path(sys.argv[2])))
