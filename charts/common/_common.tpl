{{/* Of both charts. Names do not depend on the release's name: a cluster has at most one master and one seed. */}}

{{- define "seedquota.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "seedquota.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "seedquota.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: seedquota
app.kubernetes.io/managed-by: {{ .Release.Service }}
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

{{- define "seedquota.crds" -}}
{{- range $path, $content := .Files.Glob "files/crds/*.yaml" }}
{{- $text := toString $content }}
{{- $name := regexFind "[a-z]+\\.seedquota\\.io" $text }}
{{- if include "seedquota.ownsCRD" (dict "top" $ "name" $name) }}
---
{{ $metadata := printf "metadata:\n  annotations:\n    helm.sh/resource-policy: keep\n  labels:\n%s\n  name: %s\n" (include "seedquota.labels" $ | indent 4) $name -}}
{{ $text | replace (printf "metadata:\n  name: %s\n" $name) $metadata }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The objects in a file of files/rbac, as they are but for labels and namespaces. With `bind`, each role is bound to the
program's ServiceAccount: in each of `namespaces`, if there are any. `kinds`: only these.
*/}}
{{- define "seedquota.rbac" -}}
{{- $top := .top -}}
{{- $account := include "seedquota.serviceAccountName" $top -}}
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
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  selector:
    matchLabels:
      {{- include "seedquota.selector" $top | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "seedquota.labels" $top | nindent 8 }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        kubectl.kubernetes.io/default-container: {{ $top.Chart.Name }}
        {{- with $values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ include "seedquota.serviceAccountName" $top }}
      automountServiceAccountToken: true
      enableServiceLinks: false
      {{- with $values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      terminationGracePeriodSeconds: 40
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        fsGroup: 65532
        seccompProfile: {type: RuntimeDefault}
      containers:
      - name: {{ $top.Chart.Name }}
        image: {{ include "seedquota.image" $top | quote }}
        imagePullPolicy: {{ $values.image.pullPolicy }}
        command: [{{ $top.Chart.Name }}]
        args:
        - --namespace={{ $top.Release.Namespace }}
        - --health-address=:8081
        - --log-level={{ $values.log.level }}
        - --log-format={{ $values.log.format }}
        {{- range .args }}
        - {{ . | quote }}
        {{- end }}
        {{- with concat (.env | default list) $values.extraEnv }}
        env:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        {{- with $values.extraEnvFrom }}
        envFrom:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        ports:
        {{- range .ports }}
        - {{ toJson . }}
        {{- end }}
        - {name: health, containerPort: 8081, protocol: TCP}
        livenessProbe:
          httpGet: {path: /healthz, port: health}
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 6
        readinessProbe:
          httpGet: {path: /readyz, port: health}
          periodSeconds: 2
          timeoutSeconds: 2
          failureThreshold: 2
        resources:
          {{- toYaml $values.resources | nindent 10 }}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
        {{- with .mounts }}
        volumeMounts:
          {{- toYaml . | nindent 10 }}
        {{- end }}
      {{- with .volumes }}
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
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 6 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end }}
