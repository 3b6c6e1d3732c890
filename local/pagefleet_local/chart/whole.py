"""The chart's files as one mapping, and the texts that are written by hand."""

from __future__ import annotations

import tomllib

from pagefleet_local.chart.artifact_hub import chart_annotations
from pagefleet_local.chart.source import MANIFESTS, kustomized
from pagefleet_local.chart.templates import extra_files, templates
from pagefleet_local.chart.values import schema, table, values, values_yaml

CHECKOUT = MANIFESTS.parent
MADE = "Made by `python -m pagefleet_local.chart` from manifests/, crds/ and local/pagefleet_local/chart; edit those."

HELPERS = """\
{{- /* MADE */ -}}
{{- /* The image of a part: (list <root> <part> <whole reference or "">). */ -}}
{{- define "pagefleet.image" -}}
{{- $root := index . 0 -}}
{{- index . 2 | default (printf "%s/%s:%s" $root.Values.image.repository (index . 1) ($root.Values.image.tag | default $root.Chart.AppVersion)) -}}
{{- end -}}

{{- define "pagefleet.pullSecrets" -}}
{{- range .Values.image.pullSecrets }}
- name: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "pagefleet.policyVersion" -}}
{{- if .Capabilities.APIVersions.Has "policy/v1" }}policy/v1{{ else }}policy/v1beta1{{ end }}
{{- end -}}
"""

CHECKS = """\
{{- /* MADE */ -}}
{{- if not (or .Values.gateway.tls.plaintext .Values.gateway.tls.enabled) }}
{{- fail "gateway.tls.plaintext: false is allowed only with gateway.tls.enabled: true (nothing would listen)" }}
{{- end }}
{{- $named := false }}
{{- range .Values.batches.env }}
{{- if eq .name "PAGEFLEET_BATCHES_GATEWAY_URL" }}{{ $named = true }}{{ end }}
{{- end }}
{{- if and .Values.batches.enabled (not .Values.gateway.tls.plaintext) (not $named) }}
{{- fail "batches.enabled: with gateway.tls.plaintext: false the batches server needs the gateway's https:// address, as PAGEFLEET_BATCHES_GATEWAY_URL in batches.env" }}
{{- end }}
{{- if and .Values.operator.prometheus.tokenSecretName (not .Values.operator.prometheus.url) }}
{{- fail "operator.prometheus.tokenSecretName: needs operator.prometheus.url" }}
{{- end }}
{{- if and .Values.monitoring.labels (not .Values.monitoring.enabled) }}
{{- fail "monitoring.labels: needs monitoring.enabled: true" }}
{{- end }}
"""

NOTES = """\
Pagefleet {{ .Chart.AppVersion }} is in namespace {{ .Release.Namespace }}: {{ .Values.operator.replicas }} operator(s), {{ .Values.gateway.replicas }} gateway(s).

  kubectl -n {{ .Release.Namespace }} rollout status deployment/pagefleet-operator
  kubectl -n {{ .Release.Namespace }} rollout status deployment/pagefleet-gateway
  kubectl apply -f manifests/samples/chat.yaml

The gateway answers at http{{ if .Values.gateway.tls.enabled }}s{{ end }}://pagefleet-gateway.{{ .Release.Namespace }}.svc/<namespace>/<service>/v1.
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace }}
{{- if not (hasKey (dig "metadata" "labels" (dict) $namespace) "pod-security.kubernetes.io/enforce") }}

The namespace does not enforce Pod Security yet; all of Pagefleet's pods pass `restricted`:

  kubectl label namespace {{ .Release.Namespace }} pod-security.kubernetes.io/enforce=restricted
{{- end }}
{{- if not (lookup "v1" "Secret" .Release.Namespace .Values.operator.alertTokenSecretName) }}

Alerts are refused until there is a token for them:

  kubectl -n {{ .Release.Namespace }} create secret generic {{ .Values.operator.alertTokenSecretName }} --from-literal=token="$(openssl rand -hex 32)"
{{- end }}
{{- if and .Values.gateway.tls.enabled (not (lookup "v1" "Secret" .Release.Namespace .Values.gateway.tls.secretName)) }}

The gateway's pods wait for the Secret {{ .Values.gateway.tls.secretName }} (kubectl create secret tls).
{{- end }}
{{- if and .Values.gateway.apiKeys.enabled (not (lookup "v1" "Secret" .Release.Namespace .Values.gateway.apiKeys.secretName)) }}

The gateway's pods wait for the Secret {{ .Values.gateway.apiKeys.secretName }} (key keys.yaml, docs/gateway.md).
{{- end }}
{{- if and .Values.gateway.picker.mutualTLS (not (lookup "v1" "Secret" .Release.Namespace .Values.gateway.picker.tlsSecretName)) }}

The gateways do not start without ca.crt in the Secret {{ .Values.gateway.picker.tlsSecretName }} (docs/gateway-api.md).
{{- end }}
{{- if and .Values.operator.prometheus.tokenSecretName (not (lookup "v1" "Secret" .Release.Namespace .Values.operator.prometheus.tokenSecretName)) }}

The operator's pods wait for the Secret {{ .Values.operator.prometheus.tokenSecretName }} (key token).
{{- end }}
{{- if and .Values.batches.enabled .Values.gateway.apiKeys.enabled (not (lookup "v1" "Secret" .Release.Namespace .Values.batches.keySecretName)) }}

The batches server is not ready before the Secret {{ .Values.batches.keySecretName }} is there (key key, docs/howto/batches.md).
{{- end }}

Helm neither upgrades nor deletes the CustomResourceDefinition. Before each `helm upgrade`:

  helm show crds <chart> | kubectl apply -f -
"""

README = """\
# Helm chart

MADE

`helm template` with the defaults is manifests/base without its Namespace; `production.yaml` and `air-gapped.yaml` beside
this file are the values that make the overlays of these names. Tests hold them equal. Installing, upgrading and
uninstalling: docs/install.md.

- One release to a cluster (its ClusterRoles have fixed names), in a namespace of its own. The shipped policies, rules and
  documentation say `pagefleet-system`.
- The CustomResourceDefinition is in `crds/`: Helm installs it once, and neither upgrades nor deletes it.
- PodDisruptionBudgets are policy/v1 where the API server has it, policy/v1beta1 elsewhere.

## Values

"""

PRODUCTION = """\
# The values of manifests/overlays/production.
operator: {podDisruptionBudget: true}
gateway:
  replicas: 2
  podDisruptionBudget: true
  tls: {enabled: true}
  apiKeys: {enabled: true}
monitoring: {enabled: true}
"""

AIR_GAPPED = """\
# The values of manifests/overlays/air-gapped: write your registry's name.
image: {repository: registry.example.com/pagefleet}
"""


def chart() -> dict[str, str]:
    """Path below charts/pagefleet -> text. Raises SourceError."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    containers = {
        one["metadata"]["name"].removeprefix("pagefleet-"): one["spec"]["template"]["spec"]["containers"][0]
        for one in [*kustomized(MANIFESTS / "base"), *kustomized(MANIFESTS / "batches")]
        if one["kind"] == "Deployment"
    }
    known = values({name: container["resources"] for name, container in containers.items()})
    images = {name: container["image"] for name, container in containers.items()}
    described = (
        f"# {MADE}\napiVersion: v2\nname: pagefleet\ntype: application\nversion: {project['version']}\n"
        f"appVersion: {project['version']}\ndescription: {project['description'].partition(':')[0]}\n"
        'kubeVersion: ">=1.20.0-0"\nkeywords: [kubernetes, llm, inference]\n'
        + chart_annotations(project["version"], project["license"], images)
    )
    files = {
        "Chart.yaml": described,
        "README.md": README.replace("MADE", MADE) + table(known),
        "values.yaml": values_yaml(known),
        "values.schema.json": schema(known),
        "production.yaml": PRODUCTION,
        "air-gapped.yaml": AIR_GAPPED,
        "templates/_helpers.tpl": HELPERS.replace("MADE", MADE),
        "templates/checks.yaml": CHECKS.replace("MADE", MADE),
        "templates/NOTES.txt": NOTES,
    }
    for path in sorted((CHECKOUT / "crds").glob("*.yaml")):
        files[f"crds/{path.name}"] = path.read_text()
    files |= extra_files()
    comment = f"{{{{- /* {MADE} */ -}}}}\n"
    return files | {f"templates/{name}": comment + text for name, text in templates().items()}
