"""Finds the server to measure: a URL as given, or a service behind the gateway, and the model's name; and checks its endpoints: each gets
one small request, and where it can stream a second one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from pagefleet_cli.base.cluster import Cluster, Document, Target
from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.bench.requests import Endpoint as Server
from pagefleet_cli.bench.requests import base, models
from pagefleet_cli.bench.run import client
from pagefleet_contract.endpoints import ENDPOINTS, Endpoint
from pagefleet_contract.model_name import served_name
from pagefleet_contract.names import GATEWAY, SYSTEM_NAMESPACE

LOOK_SECONDS = 15.0
LONGEST = 120  # characters of a cause
LAST_EVENTS = ("[DONE]", "message_stop", "response.completed", "response.incomplete")


def through_gateway(service: str, gateway: str | None, target: Target) -> tuple[str, str]:
    """(URL ending in /v1, served model name) of NAMESPACE/NAME or NAME. Raises CommandError."""
    namespace, separator, name = service.rpartition("/")
    chosen = Target(namespace if separator else target.namespace, target.kubeconfig, target.context)
    cluster = Cluster(chosen)
    document = cluster.service(name)
    root = (gateway or _address(cluster)).rstrip("/")
    served = served_name(document) or name
    return f"{root}/{cluster.namespace}/{name}/v1", served


def _address(cluster: Cluster) -> str:
    """The address of the gateway's load balancer, else its cluster address, which only machines of the cluster reach."""
    try:
        service = cluster.gateway(SYSTEM_NAMESPACE, GATEWAY)
    except CommandError as error:
        raise CommandError(f"the gateway's address is not known: {error}; give it with --url") from error
    return address(service)


def address(service: Document) -> str:
    """The URL of a gateway's Service. Pure. Raises CommandError."""
    ports = service["spec"]["ports"]
    port = next((port for port in ports if port.get("name") == "http"), ports[0])
    scheme = "https" if port.get("name") == "https" else "http"  # a gateway may have no plaintext
    entries = ((service.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    host = next((entry.get("ip") or entry.get("hostname") for entry in entries), None) or service["spec"].get(
        "clusterIP"
    )
    if not host or host == "None":
        raise CommandError("the gateway's Service has no address: give the gateway's with --url")
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port['port']}"


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


async def failing(session: aiohttp.ClientSession, server: Server, paths: Sequence[str]) -> dict[str, str]:
    """The cause of each failure by the endpoint's path; {} when every one answers as it should."""
    found = {}
    for path in paths:
        cause = await _failure(session, server, ENDPOINTS[path])
        if cause:
            found[path] = cause[:LONGEST]
    return found


async def _failure(session: aiohttp.ClientSession, server: Server, endpoint: Endpoint) -> str:
    """Why an endpoint is not as it should be; "" for a good answer."""
    url = server.url.removesuffix("/v1") + endpoint.path
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    try:
        if endpoint.body is None:
            async with session.get(url, headers=headers) as response:
                return await _answer(response, endpoint)
        body: dict[str, Any] = {"model": server.model, **endpoint.body}
        async with session.post(url, json=body, headers=headers) as response:
            cause = await _answer(response, endpoint)
        if cause or not endpoint.streams:
            return cause
        async with session.post(url, json={**body, "stream": True}, headers=headers) as response:
            return await _stream(response)
    except TimeoutError:
        return "timeout"
    except (aiohttp.ClientError, OSError, HttpProcessingError) as error:
        return f"no answer: {type(error).__name__}"


async def _answer(response: aiohttp.ClientResponse, endpoint: Endpoint) -> str:
    text = await response.text(errors="replace")
    if response.status != 200:
        return f"HTTP {response.status}: {_message(text)}"
    try:
        value = json.loads(text).get(endpoint.answer)
    except (ValueError, AttributeError):
        return "the answer is no JSON object"
    return "" if value else f"the answer has no {endpoint.answer}"


async def _stream(response: aiohttp.ClientResponse) -> str:
    """An error that came in the stream counts as a failure, as does a stream without its last event."""
    if response.status != 200:
        return f"streamed: HTTP {response.status}: {_message(await response.text(errors='replace'))}"
    text = await response.text(errors="replace")
    data = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    if any('"error":{' in one.replace(" ", "") for one in data):
        return "streamed: an error in the stream"
    return "" if data and any(name in data[-1] for name in LAST_EVENTS) else "streamed: the stream has no last event"


def _message(text: str) -> str:
    """The message of an error in OpenAI's or Anthropic's form, else the text's beginning."""
    try:
        error = json.loads(text)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError):
        return " ".join(text.split())[:LONGEST]
