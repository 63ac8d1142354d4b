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
