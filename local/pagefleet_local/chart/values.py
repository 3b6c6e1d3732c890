"""The chart's values: name, default, meaning and allowed form of each, and what is written from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import yaml

from pagefleet_contract.quantity import seconds
from pagefleet_contract.traffic import DEFAULT_TIMEOUT

Document = dict[str, Any]
TEXT, FLAG, MAP = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
URL = {"type": "string", "pattern": "^(https?://.+)?$"}
REPOSITORY = {"type": "string", "pattern": "^[^/\\s].*[^/\\s]$"}
SIZE = {"type": "string", "pattern": "^[1-9][0-9]*(\\.[0-9]+)?([kMGTPE]|[KMGTPE]i)?$"}
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
OBJECTS = {"type": "array", "items": {"type": "object"}}
PEERS = {**OBJECTS, "minItems": 1}  # an empty list would mean everybody
NAMES = {"type": "array", "items": NAME, "uniqueItems": True}
VARIABLES = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "value": {"type": "string"}, "valueFrom": {"type": "object"}},
        "additionalProperties": False,
    },
}

DRAIN_SECONDS = int(seconds(DEFAULT_TIMEOUT))  # the gateway's own default

# As in manifests/components/picker: gateways' pods, in namespaces that an administrator has labelled.
GATEWAYS = [
    {
        "namespaceSelector": {"matchLabels": {"pagefleet.io/gateways": "trusted"}},
        "podSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]},
    }
    for label in ("gateway.networking.k8s.io/gateway-name", "gateway.envoyproxy.io/owning-gateway-name")
]


@dataclass(frozen=True)
class Value:
    """`path` is dotted; `schema` is JSON schema."""

    path: str
    default: Any
    about: str
    schema: Document


def count(least: int, most: int) -> Document:
    return {"type": "integer", "minimum": least, "maximum": most}


def common(part: str, resources: Document) -> tuple[Value, ...]:
    """What operator and gateway have alike."""
    return (
        Value(f"{part}.image", "", f"whole reference of the {part}'s image (a digest, say); empty: from `image`", TEXT),
        *pod(part, resources),
        Value(f"{part}.podDisruptionBudget", False, "a node drain takes one pod at a time", FLAG),
    )


def pod(part: str, resources: Document) -> tuple[Value, ...]:
    """What the pods of every part have."""
    return (
        Value(f"{part}.resources", resources, "requests and limits of the container", MAP),
        Value(f"{part}.env", [], "further environment variables, as in a container", VARIABLES),
        Value(f"{part}.podAnnotations", {}, "annotations of the pods", STRINGS),
        Value(f"{part}.nodeSelector", {}, "labels of the nodes the pods may run on", STRINGS),
        Value(f"{part}.tolerations", [], "taints that the pods tolerate", OBJECTS),
        Value(f"{part}.affinity", {}, "as in a pod's spec", MAP),
        Value(f"{part}.priorityClassName", "", "PriorityClass of the pods", TEXT),
    )


def values(resources: dict[str, Document]) -> tuple[Value, ...]:
    """All of them. `resources` are those of the manifests, by part."""
    return (
        Value("image.repository", "docker.io/pagefleet", "where the images are: registry and folder", REPOSITORY),
        Value("image.tag", "", "empty: the chart's appVersion", TEXT),
        Value(
            "image.pullPolicy",
            "IfNotPresent",
            "of every container",
            {"type": "string", "enum": ["IfNotPresent", "Always", "Never"]},
        ),
        Value("image.pullSecrets", [], "names of Secrets with credentials of the registry", NAMES),
        Value("operator.replicas", 2, "one decides, the others stand by", count(1, 5)),
        *common("operator", resources["operator"]),
        Value("operator.namespaces", [], "look after the services of these namespaces only; empty: of all", NAMES),
        Value("operator.logLevel", "", "empty: INFO", {"type": "string", "enum": ["", "DEBUG", "INFO", "WARNING", "ERROR"]}),
        Value("operator.prometheus.url", "", "Prometheus for PromQL gates of rollouts (docs/rollouts.md)", URL),
        Value("operator.prometheus.tokenSecretName", "", "Secret (key token) with a bearer token for it", TEXT),
        Value("operator.alertTokenSecretName", "pagefleet-alert-token", "Secret (key token) that Alertmanager shows; without it every alert is refused", NAME),
        Value("operator.statusPageTokenSecretName", "pagefleet-status-page-token", "Secret (key token) of the status page; without it there is none", NAME),
        Value("operator.tlsSecretName", "pagefleet-operator-tls", "Secret (kubernetes.io/tls); without it there is no HTTPS on 8443", NAME),
        Value("gateway.replicas", 1, "from 2 on spread over nodes", count(1, 100)),
        *common("gateway", resources["gateway"]),
        Value("gateway.workers", 0, "threads of Envoy; each takes a core when busy; 0: as many as the CPU limit or the node has cores, 4 at most", count(0, 64)),
        Value("gateway.drainSeconds", DRAIN_SECONDS, "how long a gateway that stops waits for open answers; as long as the longest `spec.traffic.timeout`", count(0, 86400)),
        Value("gateway.service.type", "ClusterIP", "of the Service pagefleet-gateway", {"type": "string", "enum": ["ClusterIP", "NodePort", "LoadBalancer"]}),
        Value("gateway.service.annotations", {}, "of the same, for a cloud's load balancer", STRINGS),
        Value("gateway.tls.enabled", False, "HTTPS on port 443 of the Service (docs/gateway.md)", FLAG),
        Value("gateway.tls.secretName", "pagefleet-gateway-tls", "Secret (kubernetes.io/tls); it must be there", NAME),
        Value("gateway.tls.plaintext", True, "with TLS: port 80 as well", FLAG),
        Value("gateway.apiKeys.enabled", False, "ask clients for a key (docs/gateway.md)", FLAG),
        Value("gateway.apiKeys.secretName", "pagefleet-gateway-api-keys", "Secret (key keys.yaml); it must be there", NAME),
        Value("gateway.picker.enabled", False, "endpoint picker for other gateways, port 9003 (docs/gateway-api.md)", FLAG),
        Value("gateway.picker.tlsSecretName", "pagefleet-picker-tls", "Secret (kubernetes.io/tls) of that port; without it the picker signs its own certificate", NAME),
        Value("gateway.picker.mutualTLS", False, "gateways must show a certificate of an authority in ca.crt of that Secret", FLAG),
        Value("gateway.picker.from", GATEWAYS, "peers of a NetworkPolicy: the gateways that may reach that port", PEERS),
        Value("batches.enabled", False, "files and batches of OpenAI's Batch API, sent as background work (docs/howto/batches.md)", FLAG),
        Value("batches.keySecretName", "pagefleet-batches-key", "Secret (key key) with the server's own API key, where the gateway asks for keys", NAME),
        Value("batches.storage.size", "10Gi", "of the volume with files and answers", SIZE),
        Value("batches.storage.className", "", "StorageClass of the volume; empty: the cluster's default", TEXT),
        *pod("batches", resources["batches"]),
        Value("networkPolicies.enabled", True, "what may reach operator, gateway and batches server", FLAG),
        Value("monitoring.enabled", False, "PodMonitors, rules and dashboards (needs monitoring.coreos.com/v1)", FLAG),
        Value("monitoring.dashboards", True, "with monitoring: ConfigMaps for Grafana's sidecar", FLAG),
        Value("monitoring.labels", {}, "of monitors and rules, where your Prometheus selects by label", STRINGS),
    )  # fmt: skip


def tree(given: tuple[Value, ...]) -> Document:
    """The defaults, nested."""
    root: Document = {}
    for value in given:
        *way, last = value.path.split(".")
        place = root
        for part in way:
            place = place.setdefault(part, {})
        place[last] = value.default
    return root


def values_yaml(given: tuple[Value, ...]) -> str:
    """values.yaml, a comment above each value."""
    about = {value.path: value.about for value in given}
    return "# Values of the chart pagefleet; README.md beside this file has them in a table.\n" + _yaml(
        tree(given), (), about
    )


def _yaml(node: Document, path: tuple[str, ...], about: dict[str, str]) -> str:
    text, indent = "", "  " * len(path)
    for key, value in node.items():
        here = (*path, key)
        if ".".join(here) in about:
            shown = yaml.safe_dump({key: value}, sort_keys=False, default_flow_style=False)
            text += f"{indent}# {about['.'.join(here)]}\n"
            text += "".join(f"{indent}{line}\n" for line in shown.splitlines())
        else:
            text += f"{indent}{key}:\n{_yaml(value, here, about)}"
    return text


def schema(given: tuple[Value, ...]) -> str:
    """values.schema.json: unknown values are refused."""
    root: Document = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart pagefleet"}
    root |= _closed()
    for value in given:
        *way, last = value.path.split(".")
        place = root
        for part in way:
            place = place["properties"].setdefault(part, _closed())
        place["properties"][last] = {**value.schema, "description": value.about}
    # Where this chart is part of another, Helm hands these two down.
    root["properties"]["global"] = {**MAP, "description": "Helm's own, where this chart is part of another"}
    root["properties"]["enabled"] = {**FLAG, "description": "for the `condition` of a chart that this one is part of"}
    return json.dumps(root, indent=2) + "\n"


def _closed() -> Document:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def table(given: tuple[Value, ...]) -> str:
    """The values as a Markdown table."""
    rows = [f"| `{value.path}` | `{json.dumps(value.default)}` | {value.about} |" for value in given]
    return "\n".join(("| value | default | meaning |", "|---|---|---|", *rows)) + "\n"
