{{/* Of all charts. Names do not depend on the release's name: a cluster has at most one master and one seed. */}}

{{- define "seedquota.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "seedquota.labels" -}}
{{- $ours := include "seedquota.selector" . | fromYaml -}}
{{- $_ := set $ours "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- $_ := set $ours "app.kubernetes.io/version" .Chart.AppVersion -}}
{{- $_ := set $ours "app.kubernetes.io/part-of" "seedquota" -}}
{{- $_ := set $ours "app.kubernetes.io/managed-by" .Release.Service -}}
{{- range $value := list "commonLabels" "podLabels" -}}
{{- range $label, $_ := get $.Values $value | default dict -}}
{{- if hasKey $ours $label -}}
{{- fail (printf "%s may not set %s: the chart sets this label, and its Services, Deployment and policies select pods by such labels" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- merge $ours .Values.commonLabels | toYaml -}}
{{- end }}

{{- define "seedquota.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{- define "seedquota.serviceAccountName" -}}
{{- if .Values.serviceAccount.name -}}
{{ .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create -}}
{{ .Chart.Name }}
{{- else -}}
{{- fail "serviceAccount.name is required with serviceAccount.create=false: the name of a ServiceAccount in the release's namespace" -}}
{{- end }}
{{- end }}

{{/*
Whether this release has the CRD of this name: nobody else has brought it. Helm refuses what another release owns, and both
charts need the CRDs, so the first of two releases in one cluster brings them.
*/}}
{{- define "seedquota.ownsCRD" -}}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" .name -}}
{{- $annotations := dig "metadata" "annotations" dict $live -}}
{{- $byHelm := eq (dig "metadata" "labels" "app.kubernetes.io/managed-by" "" $live) "Helm" -}}
{{- $release := printf "%s/%s" .top.Release.Namespace .top.Release.Name -}}
{{- $owner := printf "%s/%s" (get $annotations "meta.helm.sh/release-namespace") (get $annotations "meta.helm.sh/release-name") -}}
{{- if or (not $live) (and $byHelm (eq $owner $release)) -}}true{{- end -}}
{{- end }}

{{/* They stay: without its definition, every quota is gone. */}}
{{- define "seedquota.crds" -}}
{{- range $path, $content := .Files.Glob "files/crds/*.yaml" }}
{{- $text := toString $content }}
{{- $name := regexFind "[a-z]+\\.seedquota\\.io" $text }}
{{- if include "seedquota.ownsCRD" (dict "top" $ "name" $name) }}
---
{{ $metadata := printf "metadata:\n  annotations:\n    argocd.argoproj.io/sync-options: Prune=false\n    helm.sh/resource-policy: keep\n  labels:\n%s\n  name: %s\n" (include "seedquota.labels" $ | indent 4) $name -}}
{{ $text | replace (printf "metadata:\n  name: %s\n" $name) $metadata }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The objects in a file of files/rbac, as they are but for labels and namespaces. With `bind`, each role is bound to the
program's ServiceAccount, or to `account`: in each of `namespaces`, if there are any. `kinds`: only these.
*/}}
{{- define "seedquota.rbac" -}}
{{- $top := .top -}}
{{- $account := .account | default (include "seedquota.serviceAccountName" $top) -}}
{{- $user := printf "system:serviceaccount:%s:%s" $top.Release.Namespace $account -}}
{{- $text := $top.Files.Get (printf "files/rbac/%s.yaml" .file) | replace "system:serviceaccount:seedquota:seedquota-seed" $user | replace "system:serviceaccount:seedquota:seedquota-master" $user -}}
{{- $subject := dict "kind" "ServiceAccount" "name" $account "namespace" $top.Release.Namespace -}}
{{- $namespaces := .namespaces -}}
{{- $bind := .bind -}}
{{- $kinds := .kinds -}}
{{- range $document := splitList "\n---\n" $text }}
{{- $object := fromYaml $document }}
{{- if or (not $kinds) (has $object.kind $kinds) }}
{{- $labels := merge (include "seedquota.labels" $top | fromYaml) ($object.metadata.labels | default dict) }}
{{- $metadata := dict "name" $object.metadata.name "labels" $labels }}
{{- if hasKey $object.metadata "namespace" }}
{{- $_ := set $metadata "namespace" $top.Release.Namespace }}
{{- end }}
{{- range $known := $object.subjects }}
{{- if eq $known.kind "ServiceAccount" }}
{{- $_ := set $known "namespace" $top.Release.Namespace }}
{{- end }}
{{- end }}
---
{{ set $object "metadata" $metadata | toYaml }}
{{- if and $bind (has $object.kind (list "Role" "ClusterRole")) }}
{{- $role := dict "apiGroup" "rbac.authorization.k8s.io" "kind" $object.kind "name" $object.metadata.name }}
{{- if $namespaces }}
{{- range $namespace := $namespaces }}
---
{{ include "seedquota.binding" (dict "kind" "RoleBinding" "metadata" (set (deepCopy $metadata) "namespace" $namespace) "role" $role "subjects" (list $subject)) }}
{{- end }}
{{- else }}
---
{{ include "seedquota.binding" (dict "kind" (printf "%sBinding" $object.kind) "metadata" $metadata "role" $role "subjects" (list $subject)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "seedquota.binding" -}}
{{ dict "apiVersion" "rbac.authorization.k8s.io/v1" "kind" .kind "metadata" .metadata "roleRef" .role "subjects" .subjects | toYaml }}
{{- end }}

{{/* Where pods may run, and what they may do: of the Deployment, and of Jobs. */}}
{{- define "seedquota.pod" -}}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* ... of their containers. `env`: beside that of the values. */}}
{{- define "seedquota.container" -}}
{{- $values := .top.Values -}}
image: {{ include "seedquota.image" .top | quote }}
imagePullPolicy: {{ $values.image.pullPolicy }}
{{- with concat (.env | default list) $values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.extraEnvFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.securityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The families of a Service's addresses. */}}
{{- define "seedquota.ipFamilies" -}}
{{- with .Values.serviceIPFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.serviceIPFamilies }}
ipFamilies:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What the pods of both programs have in common. The program's own flags, ports and volumes are in `args`, `ports`, `mounts`, `volumes`. */}}
{{- define "seedquota.deployment" -}}
{{- $top := .top -}}
{{- $values := $top.Values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $top.Chart.Name }}
  namespace: {{ $top.Release.Namespace }}
  labels:
    {{- include "seedquota.labels" $top | nindent 4 }}
spec:
  replicas: {{ $values.replicas }}
  strategy:
    {{- if $values.updateStrategy }}
    {{- toYaml $values.updateStrategy | nindent 4 }}
    {{- else if $values.hostNetwork }}
    type: RollingUpdate
    rollingUpdate: {maxSurge: 0, maxUnavailable: 1}
    {{- else }}
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
    {{- end }}
  selector:
    matchLabels:
      {{- include "seedquota.selector" $top | nindent 6 }}
  template:
    metadata:
      labels:
        {{- merge (include "seedquota.labels" $top | fromYaml) $values.podLabels | toYaml | nindent 8 }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ $top.Chart.Name }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "seedquota.serviceAccountName" $top }}
      {{- include "seedquota.pod" $top | nindent 6 }}
      {{- if $values.hostNetwork }}
      hostNetwork: true
      {{- end }}
      {{- with $values.dnsPolicy | default (ternary "ClusterFirstWithHostNet" "" $values.hostNetwork) }}
      dnsPolicy: {{ . }}
      {{- end }}
      terminationGracePeriodSeconds: 40
      containers:
      - name: {{ $top.Chart.Name }}
        {{- include "seedquota.container" (dict "top" $top "env" .env) | nindent 8 }}
        command: [{{ $top.Chart.Name }}]
        args:
        - --namespace={{ $top.Release.Namespace }}
        - --health-address=:{{ int $values.healthPort }}
        - --log-level={{ $values.log.level }}
        - --log-format={{ $values.log.format }}
        {{- range concat .args $values.extraArgs }}
        - {{ . | quote }}
        {{- end }}
        ports:
        {{- range .ports }}
        - {{ toJson . }}
        {{- end }}
        - {name: health, containerPort: {{ int $values.healthPort }}, protocol: TCP}
        livenessProbe:
          httpGet: {path: /healthz, port: health}
          {{- toYaml $values.livenessProbe | nindent 10 }}
        readinessProbe:
          httpGet: {path: /readyz, port: health}
          {{- toYaml $values.readinessProbe | nindent 10 }}
        resources:
          {{- toYaml $values.resources | nindent 10 }}
        {{- with concat (.mounts | default list) $values.extraVolumeMounts }}
        volumeMounts:
          {{- toYaml . | nindent 10 }}
        {{- end }}
      {{- with concat (.volumes | default list) $values.extraVolumes }}
      volumes:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
      {{- if $values.topologySpreadConstraints }}
        {{- toYaml $values.topologySpreadConstraints | nindent 6 }}
      {{- else }}
      {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
      - topologyKey: {{ . }}
        maxSkew: 1
        whenUnsatisfiable: ScheduleAnyway
        matchLabelKeys: [pod-template-hash]
        labelSelector:
          matchLabels:
            {{- include "seedquota.selector" $top | nindent 12 }}
      {{- end }}
      {{- end }}
{{- end }}

{{- define "seedquota.jobName" -}}
{{ .top.Chart.Name }}-{{ .name }}
{{- end }}

{{/* A Job has an account of its own, with its own rights, unless accounts are made by others. */}}
{{- define "seedquota.jobAccount" -}}
{{- ternary (include "seedquota.jobName" .) (include "seedquota.serviceAccountName" .top) .top.Values.serviceAccount.create -}}
{{- end }}

{{/*
A Job that Helm runs at `hook`: `seedquota` with `args`, as `account`. No Service and no policy of the program selects its
pods: they have another name. `seconds`: it fails after that time. `configMap`: is mounted.
*/}}
{{- define "seedquota.job" -}}
{{- $top := .top -}}
{{- $name := include "seedquota.jobName" . -}}
{{- $labels := set (include "seedquota.labels" $top | fromYaml) "app.kubernetes.io/name" $name -}}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ $name }}
  namespace: {{ $top.Release.Namespace }}
  labels:
    {{- toYaml $labels | nindent 4 }}
  annotations:
    helm.sh/hook: {{ .hook }}
    helm.sh/hook-weight: {{ .weight | default 0 | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
spec:
  backoffLimit: 0
  {{- with .seconds }}
  activeDeadlineSeconds: {{ int . }}
  {{- end }}
  template:
    metadata:
      labels:
        {{- merge (deepCopy $labels) $top.Values.podLabels | toYaml | nindent 8 }}
      {{- with $top.Values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      restartPolicy: Never
      serviceAccountName: {{ .account }}
      {{- include "seedquota.pod" $top | nindent 6 }}
      containers:
      - name: {{ .name }}
        {{- $env := list (dict "name" "HOME" "value" "/") }}
        {{- include "seedquota.container" (dict "top" $top "env" (concat $env (include "seedquota.env" $top | fromJsonArray))) | nindent 8 }}
        command: [seedquota]
        args:
        {{- range .args }}
        - {{ . | quote }}
        {{- end }}
        resources:
          {{- toYaml $top.Values.jobs.resources | nindent 10 }}
        {{- if .configMap }}
        volumeMounts:
        - {name: {{ .name }}, mountPath: /etc/seedquota/{{ .name }}, readOnly: true}
        {{- end }}
      {{- if .configMap }}
      volumes:
      - name: {{ .name }}
        configMap: {name: {{ .configMap }}}
      {{- end }}
{{- end }}

{{/* How Prometheus reads the metrics: the chart's values, and one of its monitors. */}}
{{- define "seedquota.scraping" -}}
{{- $monitor := index . 1 -}}
{{- with $monitor.interval }}
interval: {{ . }}
{{- end }}
{{- with concat (include "seedquota.targetLabels" (index . 0) | fromYamlArray) ($monitor.relabelings | default list) }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $monitor.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* About this installation alone: others may have the same Prometheus. */}}
{{- define "seedquota.alerts" -}}
{{- $given := .Values.prometheusRule -}}
{{- $labels := merge (include "seedquota.installation" . | fromYaml) $given.matchers -}}
{{- $matchers := list -}}
{{- range $label, $value := $labels -}}
{{- $matchers = append $matchers (printf "%s=%q" $label $value) -}}
{{- end -}}
{{- $page := $given.runbookURL | default (printf "https://github.com/seedquota/seedquota/blob/v%s/docs/how-to/alerts.md" .Chart.AppVersion) -}}
{{- $alerts := .Files.Get "files/alerts.yaml" | fromYaml -}}
{{- range $group := $alerts.groups -}}
{{- range $rule := $group.rules -}}
{{- $_ := set $rule "expr" ($rule.expr | replace "INSTALLATION" (join ", " $matchers)) -}}
{{- $_ := set $rule "labels" (merge $rule.labels $labels) -}}
{{- $_ := set $rule.annotations "runbook_url" (printf "%s#%s" $page (lower $rule.alert)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $alerts -}}
{{- end }}
