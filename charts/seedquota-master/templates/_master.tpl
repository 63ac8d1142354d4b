{{- define "seedquota.ingressRules" -}}
{{- end }}

{{- define "seedquota.egressPorts" -}}
[]
{{- end }}
