"""Finds what to measure: a URL as given, or a service behind the gateway, and the model's name."""

from __future__ import annotations

import asyncio

import aiohttp

from pagefleet_cli.base.cluster import Cluster, Target
from pagefleet_cli.base.faults import Fault
from pagefleet_cli.bench.requests import base, models
from pagefleet_cli.bench.run import client
from pagefleet_contract.names import GATEWAY, SYSTEM_NAMESPACE

LOOK_SECONDS = 15.0


def through_gateway(service: str, gateway: str | None, target: Target) -> tuple[str, str]:
    """(URL ending in /v1, served model name) of NAMESPACE/NAME or NAME. Raises Fault."""
    namespace, separator, name = service.rpartition("/")
    chosen = Target(namespace if separator else target.namespace, target.kubeconfig, target.context)
    cluster = Cluster(chosen)
    found = cluster.service(name)
    root = (gateway or _address(cluster)).rstrip("/")
    served = str(found["spec"]["model"].get("servedName") or name)
    return f"{root}/{cluster.namespace}/{name}/v1", served


def _address(cluster: Cluster) -> str:
    """The gateway's load balancer, else its cluster address, which a machine of the cluster reaches."""
    try:
        found = cluster.gateway(SYSTEM_NAMESPACE, GATEWAY)
    except Fault as fault:
        raise Fault(f"where is the gateway? {fault}; give its --url") from fault
    port = found["spec"]["ports"][0]["port"]
    entries = ((found.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    host = next((entry.get("ip") or entry.get("hostname") for entry in entries), None) or found["spec"].get("clusterIP")
    if not host or host == "None":
        raise Fault("the gateway's Service has no address: give the gateway's --url")
    return f"http://{host}:{port}"


def served_model(url: str, key: str) -> str:
    """The one model that the server at `url` (ending in /v1) has. Raises Fault."""

    async def ask() -> list[str]:
        async with client(LOOK_SECONDS) as session:
            return await models(session, url, key)

    try:
        found = asyncio.run(ask())
    except aiohttp.ClientResponseError as error:
        raise Fault(f"{url}/models answers {error.status}: name the --model") from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Fault(f"{url} does not answer: {error or type(error).__name__}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Fault(f"{url}/models does not answer as OpenAI's API does: name the --model") from error
    if len(found) != 1:
        raise Fault(f"{url} has {len(found)} models ({', '.join(found[:8])}): name one with --model")
    return found[0]


def url_of(text: str) -> str:
    """A checked URL that ends in /v1. Raises Fault."""
    if not text.startswith(("http://", "https://")):
        raise Fault(f"--url: {text!r} must begin with http:// or https://")
    return base(text)
