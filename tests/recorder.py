"""Records every version of every InferenceService that the API server tells a watch of."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import invariants
from kubernetes.aio import client, config, watch

Document = dict[str, Any]


class Recorder:
    """`versions` by namespace and name, oldest first. A version that a broken watch missed is missing here, too."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self.versions: dict[tuple[str, str], list[Document]] = {}

    async def run(self) -> None:
        """For ever."""
        settings = client.Configuration()
        await config.load_kube_config(config_file=str(self._kubeconfig), client_configuration=settings)
        async with client.ApiClient(settings) as api:
            ask = client.CustomObjectsApi(api).list_cluster_custom_object
            while True:
                follow = watch.Watch(return_type="object")
                with contextlib.suppress(client.ApiException, aiohttp.ClientError, asyncio.TimeoutError):
                    async for event in follow.stream(
                        ask, "pagefleet.io", "v1alpha1", "inferenceservices", timeout_seconds=300
                    ):
                        self._took(event["raw_object"])
                await asyncio.sleep(0.2)

    def _took(self, document: Document) -> None:
        metadata = document["metadata"]
        known = self.versions.setdefault((metadata["namespace"], metadata["name"]), [])
        if not known or known[-1]["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            known.append(document)

    def violations(self) -> Iterator[str]:
        for (namespace, name), documents in sorted(self.versions.items()):
            for violation in invariants.over(documents):
                yield f"{namespace}/{name} {violation}"
