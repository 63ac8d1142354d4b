{{/* What helm prints about the CRDs that another release, or a person, has brought. */}}
{{- define "seedquota.notes.crds" -}}
{{- $others := list }}
{{- range $path, $content := .Files.Glob "files/crds/*.yaml" }}
{{- $name := regexFind "[a-z]+\\.seedquota\\.io" (toString $content) }}
{{- if not (include "seedquota.ownsCRD" (dict "top" $ "name" $name)) }}
{{- $others = append $others $name }}
{{- end }}
{{- end }}
{{- with $others }}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" (first .) }}
{{- $annotations := dig "metadata" "annotations" dict $live }}
{{- if hasKey $annotations "meta.helm.sh/release-name" }}
The custom resource definitions belong to the release {{ get $annotations "meta.helm.sh/release-name" }} in the namespace {{ get $annotations "meta.helm.sh/release-namespace" }}.
They are upgraded with that release. Upgrade it first. If it is gone, give them to this release:
{{- else }}
The custom resource definitions were not brought by Helm. They are not upgraded with this release.
To give them to this release:
{{- end }}

  kubectl label --overwrite crd {{ join " " . }} app.kubernetes.io/managed-by=Helm
  kubectl annotate --overwrite crd {{ join " " . }} meta.helm.sh/release-name={{ $.Release.Name }} meta.helm.sh/release-namespace={{ $.Release.Namespace }}

Then run `helm upgrade` again.
{{ end }}
{{- end }}
