{{- define "seedquota.webhookURL" -}}
{{- .Values.webhook.externalURL | default (printf "https://%s.%s.svc" .Chart.Name .Release.Namespace) -}}
{{- end }}

{{/* The host of webhook.externalURL, for what routes by it. */}}
{{- define "seedquota.externalHost" -}}
{{- $host := (urlParse .Values.webhook.externalURL).hostname -}}
{{- if not $host -}}
{{- fail "webhook.externalURL is required with webhook.ingress and webhook.tlsRoute: https://HOST, the host at which user clusters reach the webhook" -}}
{{- end -}}
{{ $host }}
{{- end }}

{{/* The Secret that is mounted as the webhook's certificate; empty: the agents make their own. */}}
{{- define "seedquota.certificateSecret" -}}
{{- if eq .Values.tls.mode "certManager" -}}
{{ .Chart.Name }}-certificate
{{- else if eq .Values.tls.mode "existingSecret" -}}
{{ required "tls.existingSecret is required with tls.mode=existingSecret: the name of a Secret with tls.crt, tls.key and ca.crt" .Values.tls.existingSecret }}
{{- end -}}
{{- end }}

{{- define "seedquota.env" -}}
{{- $env := list -}}
{{- with .Values.providers.proxy -}}
{{- $env = append $env (dict "name" "HTTPS_PROXY" "value" .) -}}
{{- end -}}
{{- with .Values.providers.noProxy -}}
{{- $env = append $env (dict "name" "NO_PROXY" "value" .) -}}
{{- end -}}
{{ toJson $env }}
{{- end }}

{{- define "seedquota.ingressRules" -}}
# API servers have no known address.
- ports:
  - {port: webhook, protocol: TCP}
{{- end }}

{{- define "seedquota.egressPorts" -}}
{{- $ports := list -}}
{{- range regexFindAll ":[0-9]+" .Values.ledger.redis.url -1 }}
{{- $ports = append $ports (trimPrefix ":" . | int) -}}
{{- end -}}
{{- if and .Values.ledger.redis.url (or (not $ports) (contains "+sentinel:" .Values.ledger.redis.url)) -}}
{{- $ports = append $ports 6379 -}}
{{- end -}}
{{ toJson $ports }}
{{- end }}

{{/* Labels that Prometheus adds to the targets of the monitors. */}}
{{- define "seedquota.targetLabels" -}}
- targetLabel: seed
  replacement: {{ .Values.seedName | quote }}
{{- end }}

{{/* Which labels the metrics of this installation have. */}}
{{- define "seedquota.installation" -}}
seed: {{ .Values.seedName | quote }}
{{- end }}
