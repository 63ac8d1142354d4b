{{- define "seedquota.env" -}}
[]
{{- end }}

{{- define "seedquota.ingressRules" -}}
{{- if .Values.api.enabled }}
- ports:
  - {port: api, protocol: TCP}
{{- end }}
{{- end }}

{{- define "seedquota.egressPorts" -}}
[]
{{- end }}

{{/* Labels that Prometheus adds to the targets of the monitors. */}}
{{- define "seedquota.targetLabels" -}}
[]
{{- end }}

{{/* Which labels the metrics of this installation have. */}}
{{- define "seedquota.installation" -}}
namespace: {{ .Release.Namespace | quote }}
{{- end }}
