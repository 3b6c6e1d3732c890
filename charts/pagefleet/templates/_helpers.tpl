{{- /* Made by `python -m pagefleet_local.chart` from manifests/, crds/ and local/pagefleet_local/chart; edit those. */ -}}
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
