"""The schemas of HTTPRoute, InferencePool and InferenceObjective for the tests' API server, written from the kinds' published references.

https://gateway-api.sigs.k8s.io/reference/spec/ (v1.3, standard channel),
https://gateway-api-inference-extension.sigs.k8s.io/reference/spec (v1) and llm-d's reference of InferenceObjective (v1alpha2): the fields, types, bounds, enums, defaults and
list types by which an API server checks and prunes an object; no descriptions, and no CEL rules, which an API
server of 1.20 refuses. Nothing here is copied from the upstream files; to run against those, see `documents`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]
FOLDER = "PAGEFLEET_GATEWAY_API_CRDS"
GATEWAY, INFERENCE = "gateway.networking.k8s.io", "inference.networking.k8s.io"
OBJECTIVES = "inference.networking.x-k8s.io"
DNS = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
HEADER = r"^[A-Za-z0-9!#$%&'*+\-.^_\x60|~]+$"
DURATION = r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]
FILTERS = ["RequestHeaderModifier", "ResponseHeaderModifier", "RequestMirror", "RequestRedirect", "URLRewrite",
           "ExtensionRef"]  # fmt: skip


def documents(*, first_api: bool = False) -> dict[str, Schema]:
    """The CustomResourceDefinitions by plural. With `PAGEFLEET_GATEWAY_API_CRDS=FOLDER` the upstream files
    httproutes.yaml, inferencepools.yaml and inferenceobjectives.yaml of that folder, less CEL rules and defaults of "" (1.20 reads them as null). `first_api`: HTTPRoute as in
    Gateway API v1.0, without timeouts and shares of a mirror."""
    if os.environ.get(FOLDER) and not first_api:
        folder = Path(os.environ[FOLDER])
        names = ("httproutes", "inferencepools", "inferenceobjectives")
        return {name: without_cel(yaml.safe_load((folder / f"{name}.yaml").read_text())) for name in names}
    route = http_route(recent=not first_api)
    return {
        "httproutes": definition(GATEWAY, "HTTPRoute", "httproutes", {"v1": route, "v1beta1": route}),
        "inferencepools": definition(INFERENCE, "InferencePool", "inferencepools", {"v1": inference_pool()}),
        "inferenceobjectives": definition(
            OBJECTIVES, "InferenceObjective", "inferenceobjectives", {"v1alpha2": inference_objective()}
        ),
    }


def without_cel(node: Any) -> Any:
    if isinstance(node, dict):
        dropped = {"x-kubernetes-validations"} | ({"default"} if node.get("default") == "" else set())
        remaining = {name: without_cel(sub) for name, sub in node.items() if name not in dropped}
        return {name: sub for name, sub in remaining.items() if name != "status" or "acceptedNames" not in (sub or {})}
    return [without_cel(item) for item in node] if isinstance(node, list) else node


def definition(group: str, kind: str, plural: str, versions: dict[str, Schema]) -> Schema:
    """The first version is the one that is stored."""
    served = [
        {
            "name": name,
            "served": True,
            "storage": index == 0,
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}},
        }
        for index, (name, schema) in enumerate(versions.items())
    ]
    approval = {"api-approved.kubernetes.io": "unapproved, a schema for tests"}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": approval},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": served},
    }


def http_route(*, recent: bool) -> Schema:
    everything = [{"path": {"type": "PathPrefix", "value": "/"}}]
    rule = {
        "matches": array(match(), 64, default=everything),
        "filters": filters(recent=recent),
        "backendRefs": array(reference(weight=integer(0, 1_000_000, default=1), filters=filters(recent=recent)), 16),
    }
    if recent:
        rule["name"] = text(minLength=1, maxLength=253, pattern=DNS)
        rule["timeouts"] = record({"request": text(pattern=DURATION), "backendRequest": text(pattern=DURATION)})
    host = text(minLength=1, maxLength=253, pattern=r"^(\*\.)?" + DNS[1:])
    spec = record(
        {
            "parentRefs": array(parent(), 32),
            "hostnames": array(host, 16),
            "rules": array(record(rule), 16, default=[{"matches": everything}]),
        }
    )
    return root(spec, record({"parents": array(answer("controllerName"), 32)}, "parents"))


def inference_pool() -> Schema:
    label = text(maxLength=63, pattern=r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
    labels = {"type": "object", "maxProperties": 64, "additionalProperties": label}
    port = record({"number": integer(1, 65535)}, "number")
    picker = record(
        {
            **kind_of("", "Service"),
            "name": name(),
            "port": port,
            "failureMode": text(enum=["FailOpen", "FailClose"], default="FailClose"),
        },
        "name",
    )
    spec = record(
        {
            "selector": record({"matchLabels": labels}, "matchLabels"),
            "targetPorts": array(port, 8, minItems=1, **{"x-kubernetes-list-type": "atomic"}),
            "appProtocol": text(enum=["http", "kubernetes.io/h2c"]),
            "endpointPickerRef": picker,
        },
        "selector",
        "targetPorts",
        "endpointPickerRef",
    )
    return root(spec, record({"parents": array(answer(), 32)}))


def inference_objective() -> Schema:
    kind = kind_of(INFERENCE, "InferencePool")
    spec = record({"priority": whole(), "poolRef": record({**kind, "name": name()}, "name")}, "poolRef")
    return root(spec, record({"conditions": {"type": "array", "items": {"type": "object"}}}))


def root(spec: Schema, status: Schema) -> Schema:
    meta = {"apiVersion": text(), "kind": text(), "metadata": {"type": "object"}}
    return record({**meta, "spec": spec, "status": status}, "spec")


def match() -> Schema:
    whole = {"type": "PathPrefix", "value": "/"}
    kinds = ["Exact", "PathPrefix", "RegularExpression"]
    path = {"type": text(enum=kinds, default="PathPrefix"), "value": text(maxLength=1024, default="/")}
    return record(
        {
            "path": record(path, default=whole),
            "headers": by_name(4096, type=text(enum=["Exact", "RegularExpression"], default="Exact")),
            "queryParams": by_name(1024, type=text(enum=["Exact", "RegularExpression"], default="Exact")),
            "method": text(enum=METHODS),
        }
    )


def filters(*, recent: bool) -> Schema:
    mirror = {"backendRef": reference()}
    if recent:
        parts = {"numerator": integer(0), "denominator": integer(1, default=100)}
        mirror |= {"percent": integer(0, 100), "fraction": record(parts, "numerator")}
    modifier = record({"set": by_name(4096), "add": by_name(4096), "remove": array(text(), 16)})
    replaced = text(maxLength=1024)
    path = {"type": text(enum=["ReplaceFullPath", "ReplacePrefixMatch"])}
    rewrite = record({**path, "replaceFullPath": replaced, "replacePrefixMatch": replaced}, "type")
    host = text(minLength=1, maxLength=253)
    known = {
        "type": text(enum=FILTERS),
        "requestHeaderModifier": modifier,
        "responseHeaderModifier": modifier,
        "requestMirror": record(mirror, "backendRef"),
        "urlRewrite": record({"hostname": host, "path": rewrite}),
        "extensionRef": record({"group": text(), "kind": text(), "name": name()}, "group", "kind", "name"),
    }
    return array(record(known, "type"), 16)


def answer(*required: str) -> Schema:
    condition = record(
        {
            "type": text(maxLength=316),
            "status": text(enum=["True", "False", "Unknown"]),
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
            "lastTransitionTime": text(format="date-time"),
            "reason": text(minLength=1, maxLength=1024),
            "message": text(maxLength=32768),
        },
        "lastTransitionTime",
        "message",
        "reason",
        "status",
        "type",
    )
    controller = text(minLength=1, maxLength=253)
    conditions = array(condition, 8, **listed_by("type"))
    fields = {"parentRef": parent(), "controllerName": controller, "conditions": conditions}
    return record(fields, "parentRef", *required)


def parent() -> Schema:
    section = text(minLength=1, maxLength=253, pattern=DNS)
    named = {"namespace": namespace(), "name": name(), "sectionName": section, "port": integer(1, 65535)}
    return record({**kind_of(GATEWAY, "Gateway"), **named}, "name")


def reference(**more: Schema) -> Schema:
    named = {"name": name(), "namespace": namespace(), "port": integer(1, 65535)}
    return record({**kind_of("", "Service"), **named, **more}, "name")


def kind_of(group: str, kind: str) -> Schema:
    given = {"default": group} if group else {}
    return {
        "group": text(maxLength=253, pattern=f"^$|{DNS}", **given),
        "kind": text(minLength=1, maxLength=63, pattern="^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$", default=kind),
    }


def by_name(longest: int, **more: Schema) -> Schema:
    fields = {"name": text(minLength=1, maxLength=256, pattern=HEADER), "value": text(minLength=1, maxLength=longest)}
    return array(record({**fields, **more}, "name", "value"), 16, **listed_by("name"))


def listed_by(key: str) -> Schema:
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


def name() -> Schema:
    return text(minLength=1, maxLength=253)


def namespace() -> Schema:
    return text(minLength=1, maxLength=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")


def text(**more: Any) -> Schema:
    return {"type": "string", **more}


def integer(low: int, high: int | None = None, **more: Any) -> Schema:
    bounds = {"minimum": low} if high is None else {"minimum": low, "maximum": high}
    return {"type": "integer", "format": "int32", **bounds, **more}


def whole() -> Schema:
    return {"type": "integer", "format": "int32"}


def array(items: Schema, most: int, **more: Any) -> Schema:
    return {"type": "array", "items": items, "maxItems": most, **more}


def record(properties: Schema, *required: str, **more: Any) -> Schema:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, **more}
