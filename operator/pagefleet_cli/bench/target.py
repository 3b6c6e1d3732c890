"""Finds the server to measure: a URL as given, or a service behind the gateway, and the model's name."""

from __future__ import annotations

import asyncio

import aiohttp

from pagefleet_cli.base.cluster import Cluster, Target
from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.bench.requests import base, models
from pagefleet_cli.bench.run import client
from pagefleet_contract.names import GATEWAY, SYSTEM_NAMESPACE

LOOK_SECONDS = 15.0


def through_gateway(service: str, gateway: str | None, target: Target) -> tuple[str, str]:
    """(URL ending in /v1, served model name) of NAMESPACE/NAME or NAME. Raises CommandError."""
    namespace, separator, name = service.rpartition("/")
    chosen = Target(namespace if separator else target.namespace, target.kubeconfig, target.context)
    cluster = Cluster(chosen)
    document = cluster.service(name)
    root = (gateway or _address(cluster)).rstrip("/")
    served = str(document["spec"]["model"].get("servedName") or name)
    return f"{root}/{cluster.namespace}/{name}/v1", served


def _address(cluster: Cluster) -> str:
    """The address of the gateway's load balancer, else its cluster address, which only machines of the cluster reach."""
    try:
        service = cluster.gateway(SYSTEM_NAMESPACE, GATEWAY)
    except CommandError as error:
        raise CommandError(f"the gateway's address is not known: {error}; give it with --url") from error
    port = service["spec"]["ports"][0]["port"]
    entries = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    host = next((entry.get("ip") or entry.get("hostname") for entry in entries), None) or service["spec"].get(
        "clusterIP"
    )
    if not host or host == "None":
        raise CommandError("the gateway's Service has no address: give the gateway's with --url")
    return f"http://{host}:{port}"


def served_model(url: str, key: str) -> str:
    """The one model that the server at `url` (ending in /v1) has. Raises CommandError."""

    async def ask() -> list[str]:
        async with client(LOOK_SECONDS) as session:
            return await models(session, url, key)

    try:
        names = asyncio.run(ask())
    except aiohttp.ClientResponseError as error:
        raise CommandError(f"{url}/models answers {error.status}: name the model with --model") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise CommandError(f"{url} does not answer: {error or type(error).__name__}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{url}/models does not answer as OpenAI's API does: name the model with --model") from error
    if len(names) != 1:
        raise CommandError(f"{url} has {len(names)} models ({', '.join(names[:8])}): name one with --model")
    return names[0]


def url_of(text: str) -> str:
    """A checked URL that ends in /v1. Raises CommandError."""
    if not text.startswith(("http://", "https://")):
        raise CommandError(f"--url: {text!r} must begin with http:// or https://")
    return base(text)
