"""Where values enter the objects of the manifests. Describes no object itself; only what a value adds stands here."""

from __future__ import annotations

from typing import Any

import yaml

from pagefleet_contract.names import SYSTEM_NAMESPACE
from pagefleet_local.chart.source import MANIFESTS, kustomized, patched
from pagefleet_local.chart.text import SPLICED, Expression, Given, When, document
from pagefleet_local.chart.values import DRAIN_SECONDS
from pagefleet_local.fleet.kubectl import Document

NAMESPACE = Expression(".Release.Namespace | quote")
BATCHES = ".Values.batches.enabled"
# Components whose patches hold under a condition, in the order in which they are put in.
COMPONENTS = {
    "high-availability": "gt (int .Values.gateway.replicas) 1",
    "gateway-tls": ".Values.gateway.tls.enabled",
    "gateway-tls-only": "and .Values.gateway.tls.enabled (not .Values.gateway.tls.plaintext)",
    "gateway-api-keys": ".Values.gateway.apiKeys.enabled",
    "picker": ".Values.gateway.picker.enabled",
    "batches": BATCHES,
    "picker-mtls": "and .Values.gateway.picker.enabled .Values.gateway.picker.mutualTLS",
}
# What a component replaces and a value sets anyway.
VALUED = frozenset({("spec", "replicas")})
SECRETS = {
    "pagefleet-alert-token": ".Values.operator.alertTokenSecretName",
    "pagefleet-status-page-token": ".Values.operator.statusPageTokenSecretName",
    "pagefleet-operator-tls": ".Values.operator.tlsSecretName",
    "pagefleet-gateway-tls": ".Values.gateway.tls.secretName",
    "pagefleet-gateway-api-keys": ".Values.gateway.apiKeys.secretName",
    "pagefleet-picker-tls": ".Values.gateway.picker.tlsSecretName",
    "pagefleet-batches-key": ".Values.batches.keySecretName",
}
OWN_IMAGE = 'or .Values.operator.image .Values.image.tag (ne .Values.image.repository "docker.io/pagefleet")'
PROMETHEUS_TOKEN = "/var/run/secrets/pagefleet/prometheus-token"  # noqa: S105 - a path
DASHBOARDS = "and .Values.monitoring.enabled .Values.monitoring.dashboards"
RULES_FILE = "files/prometheus-rule.yaml"


def templates() -> dict[str, str]:
    """File name in the chart's `templates` -> text. Raises SourceError."""
    base = [one for one in kustomized(MANIFESTS / "base") if one["kind"] != "Namespace"]
    for component, condition in COMPONENTS.items():
        patched(base, component, condition, VALUED)
    files: dict[str, str] = {}
    for one in base:
        part = one["metadata"]["name"].removeprefix("pagefleet-")
        name, node = f"{part}.yaml", _placed(one, part)
        if "rbac.authorization.k8s.io" in one["apiVersion"] or one["kind"] == "ServiceAccount":
            name = f"{part}-rbac.yaml"
        files[name] = files.get(name, "") + document(node)
    files["batches.yaml"] = "".join(
        document(When(BATCHES, _placed(one, "batches"))) for one in kustomized(MANIFESTS / "batches")
    )
    files["pod-disruption-budgets.yaml"] = "".join(document(one) for one in _budgets())
    files["monitoring.yaml"] = "".join(document(one) for one in _monitors())
    files["dashboards.yaml"] = "".join(document(_dashboard(one)) for one in _dashboards())
    return files


def extra_files() -> dict[str, str]:
    """Texts with braces of their own, which templates read and Helm leaves alone."""
    rule = next(one for one in _monitoring() if one["kind"] == "PrometheusRule")
    files = {RULES_FILE: yaml.safe_dump(rule["spec"], sort_keys=False, width=1000, allow_unicode=True)}
    for one in _dashboards():
        files |= {f"dashboards/{name}": text for name, text in one["data"].items()}
    return files


def _placed(one: Document, part: str) -> Document | When:
    """An object of the base with the chart's values in it."""
    _namespaced(one)
    for name, value in SECRETS.items():
        _secret(one, name, Expression(f"{value} | quote"))
    if one["kind"] == "Deployment":
        _deployment(one, part)
    if one["kind"] == "PersistentVolumeClaim":
        storage = ".Values.batches.storage"
        one["spec"]["resources"]["requests"]["storage"] = Expression(f"{storage}.size | quote")
        one["spec"]["storageClassName"] = When(f"{storage}.className", Expression(f"{storage}.className | quote"))
    if one["kind"] == "Service" and part == "gateway":
        service = ".Values.gateway.service"
        one["metadata"]["annotations"] = When(f"{service}.annotations", Given(f"toYaml {service}.annotations"))
        one["spec"]["type"] = When(f'ne {service}.type "ClusterIP"', Expression(f"{service}.type"))
    if one["kind"] == "NetworkPolicy":
        if part == "gateway":
            _picker_peers(one)
        return When(".Values.networkPolicies.enabled", one)
    return one


def _picker_peers(one: Document) -> None:
    """Let a value name the gateways that may reach the endpoint picker's port."""
    rule = next(
        rule for rule in one["spec"]["ingress"] if isinstance(rule, When) and {"port": "picker"} in rule.node["ports"]
    )
    rule.node["from"] = Given("toYaml .Values.gateway.picker.from")


def _deployment(one: Document, part: str) -> None:
    values, template = f".Values.{part}", one["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    image = "gateway" if part == "batches" else part
    if part != "batches":
        one["spec"]["replicas"] = Expression(f"{values}.replicas")
    annotations = f"{values}.podAnnotations"
    template["metadata"]["annotations"] = When(annotations, Given(f"toYaml {annotations}"))
    container["image"] = Expression(f'include "pagefleet.image" (list . "{image}" .Values.{image}.image) | quote')
    container["imagePullPolicy"] = Expression(".Values.image.pullPolicy")
    container["resources"] = Given(f"toYaml {values}.resources")
    container["env"] += [*_environment(part), When(f"{values}.env", Given(f"toYaml {values}.env"))]
    if part == "gateway":
        beside = int(pod["terminationGracePeriodSeconds"]) - DRAIN_SECONDS
        pod["terminationGracePeriodSeconds"] = Expression(f"add (int {values}.drainSeconds) {beside}")
    if part == "operator":
        _prometheus_token(pod, container)
    pod["imagePullSecrets"] = When(".Values.image.pullSecrets", Given('include "pagefleet.pullSecrets" .'))
    for field in ("nodeSelector", "tolerations", "affinity"):
        pod[field] = When(f"{values}.{field}", Given(f"toYaml {values}.{field}"))
    priority = f"{values}.priorityClassName"
    pod["priorityClassName"] = When(priority, Expression(f"{priority} | quote"))


def _environment(part: str) -> list[When]:
    if part == "batches":
        return []
    if part == "gateway":
        workers = ".Values.gateway.workers"
        drain = ".Values.gateway.drainSeconds"
        return [
            _variable(f"gt (int {workers}) 0", "PAGEFLEET_GATEWAY_WORKERS", f"{workers} | toString | quote"),
            # In the manifests it is the gateway's own default.
            _variable(
                f"ne (int {drain}) {DRAIN_SECONDS}", "PAGEFLEET_GATEWAY_DRAIN_SECONDS", f"{drain} | toString | quote"
            ),
        ]
    namespaces, prometheus = ".Values.operator.namespaces", ".Values.operator.prometheus"
    own = 'include "pagefleet.image" (list . "operator" .Values.operator.image) | quote'
    token = f"{prometheus}.tokenSecretName"
    return [
        _variable(OWN_IMAGE, "PAGEFLEET_OPERATOR_IMAGE", own),
        _variable(namespaces, "PAGEFLEET_NAMESPACES", f'{namespaces} | join "," | quote'),
        _variable(".Values.operator.logLevel", "PAGEFLEET_LOG_LEVEL", ".Values.operator.logLevel | quote"),
        _variable(f"{prometheus}.url", "PAGEFLEET_PROMETHEUS_URL", f"{prometheus}.url | quote"),
        When(token, {"name": "PAGEFLEET_PROMETHEUS_TOKEN_FILE", "value": f"{PROMETHEUS_TOKEN}/token"}),
    ]


def _variable(condition: str, name: str, value: str) -> When:
    return When(condition, {"name": name, "value": Expression(value)})


def _prometheus_token(pod: Document, container: Document) -> None:
    secret, name = ".Values.operator.prometheus.tokenSecretName", "prometheus-token"
    mount = {"name": name, "mountPath": PROMETHEUS_TOKEN, "readOnly": True}
    container["volumeMounts"].append(When(secret, mount))
    pod["volumes"].append(When(secret, {"name": name, "secret": {"secretName": Expression(f"{secret} | quote")}}))


def _budgets() -> list[When]:
    """policy/v1 where it is served, its predecessor on Kubernetes 1.20."""
    text = (MANIFESTS / "components/high-availability/pod-disruption-budgets.yaml").read_text()
    budgets = []
    for one in yaml.safe_load_all(text):
        _namespaced(one)
        one["apiVersion"] = Expression('include "pagefleet.policyVersion" .')
        part = one["metadata"]["name"].removeprefix("pagefleet-")
        budgets.append(When(f".Values.{part}.podDisruptionBudget", one))
    return budgets


def _monitors() -> list[When]:
    monitors, labels = [], ".Values.monitoring.labels"
    for one in _monitoring():
        _namespaced(one)
        one["metadata"]["labels"][f"{SPLICED}monitoring"] = When(labels, Given(f"toYaml {labels}"))
        if one["kind"] == "PodMonitor":
            _believed(one["spec"])
        if one["kind"] == "PrometheusRule":
            one["spec"] = Given(f'.Files.Get "{RULES_FILE}" | trim')
        monitors.append(When(".Values.monitoring.enabled", one))
    return monitors


def _believed(spec: Document) -> None:
    """Write the release's namespace into the scrape rules that believe only the system's own pods."""
    if "matchNames" in spec["namespaceSelector"]:
        spec["namespaceSelector"]["matchNames"] = [NAMESPACE]
    for endpoint in spec["podMetricsEndpoints"]:
        for rule in endpoint.get("relabelings", ()):
            if rule.get("regex") == SYSTEM_NAMESPACE:
                rule["regex"] = NAMESPACE


def _dashboard(one: Document) -> When:
    _namespaced(one)
    one["data"] = {name: Expression(f'.Files.Get "dashboards/{name}" | toJson') for name in one["data"]}
    return When(DASHBOARDS, one)


def _monitoring() -> list[Document]:
    return kustomized(MANIFESTS / "monitoring/operator")


def _dashboards() -> list[Document]:
    return kustomized(MANIFESTS / "monitoring/dashboards")


def _namespaced(one: Document) -> None:
    for place in (one["metadata"], *one.get("subjects", ())):
        if place.get("namespace") == SYSTEM_NAMESPACE:
            place["namespace"] = NAMESPACE


def _secret(node: Any, name: str, value: Expression) -> None:
    """Name the Secret `name` by `value`, wherever a volume mounts it."""
    match node:
        case When():
            _secret(node.node, name, value)
        case dict():
            for key, inner in node.items():
                if key == "secretName" and inner == name:
                    node[key] = value
                else:
                    _secret(inner, name, value)
        case list():
            for inner in node:
                _secret(inner, name, value)
        case _:
            pass
