{{- define "gpushare.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* What selects a part's pods: never changes. Argument: (dict "component" NAME). */}}
{{- define "gpushare.selector" -}}
app.kubernetes.io/name: gpushare
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Argument: (dict "root" $ "component" NAME). */}}
{{- define "gpushare.labels" -}}
{{ include "gpushare.selector" . }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: gpushare
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "gpushare.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The parts that are not root have users of their own: operator/gpushare/process/users.py says which, and why. */}}
{{- define "gpushare.users" -}}
operator: 2100000001
webhook: 2100000002
page: 2100000003
hooks: 2100000005
{{- end }}

{{/*
For pods that need nothing of their node. OpenShift's restricted-v2 wants a user ID of the namespace's range.
Argument: (dict "root" $ "user" NAME), a name of gpushare.users.
*/}}
{{- define "gpushare.nonroot" -}}
{{- $user := get (include "gpushare.users" . | fromYaml) .user | int64 }}
runAsNonRoot: true
{{- if not .root.Values.openshift.securityContextConstraints }}
runAsUser: {{ $user }}
runAsGroup: {{ $user }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* For pods that work on the node's files: root, and nothing that makes root strong. */}}
{{- define "gpushare.noderoot" -}}
runAsUser: 0
runAsGroup: 0
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Argument: port number. Both probes of every part with a Python event loop. */}}
{{- define "gpushare.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: {{ . }}}
  initialDelaySeconds: 30
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: {{ . }}}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* Argument: a part's values. Every part is a Linux program. */}}
{{- define "gpushare.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
nodeSelector: {{- merge (dict "kubernetes.io/os" "linux") (.nodeSelector | default dict) | toYaml | nindent 2 }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/*
That of the values, and off each node whose driver is being replaced, once no share has anything there; and off nodes
without a kubelet of their own, where a pod of a DaemonSet that tolerates every taint would stay Pending.
*/}}
{{- define "gpushare.agentAffinity" -}}
{{- $here := list (dict "key" "gpushare.dev/driver-released" "operator" "DoesNotExist") }}
{{- range $key, $kind := dict "type" "virtual-kubelet" "eks.amazonaws.com/compute-type" "fargate" "liqo.io/type" "virtual-node" }}
{{- $here = append $here (dict "key" $key "operator" "NotIn" "values" (list $kind)) }}
{{- end }}
{{- $affinity := deepCopy (.Values.agent.affinity | default dict) }}
{{- $node := get $affinity "nodeAffinity" | default dict }}
{{- $required := get $node "requiredDuringSchedulingIgnoredDuringExecution" | default dict }}
{{- $terms := list }}
{{- range get $required "nodeSelectorTerms" | default (list dict) }}
{{- $expressions := concat (get . "matchExpressions" | default list) $here }}
{{- $terms = append $terms (merge (dict "matchExpressions" $expressions) .) }}
{{- end }}
{{- $node = set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- toYaml (set $affinity "nodeAffinity" $node) }}
{{- end }}

{{/*
Argument: component. Replicas on different nodes, where there are several that take them: nodes with taints that are
not tolerated do not count, nor does the release before. A full node makes room, by the priority class.
*/}}
{{- define "gpushare.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: DoNotSchedule
    nodeTaintsPolicy: Honor
    matchLabelKeys: [pod-template-hash]
    labelSelector:
      matchLabels: {{- include "gpushare.selector" (dict "component" .) | nindent 8 }}
{{- end }}

{{- define "gpushare.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gpushare.metricsArgument" -}}
{{- if .Values.metrics.enabled }}
- --metrics-port={{ .Values.metrics.port }}
{{- end }}
{{- end }}

{{- define "gpushare.metricsPort" -}}
{{- if .Values.metrics.enabled }}
- {name: metrics, containerPort: {{ .Values.metrics.port }}}
{{- end }}
{{- end }}

{{/* Argument: a part's values. Labels and annotations of its pods that the administrator adds. */}}
{{- define "gpushare.podLabels" -}}
{{- with .podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "gpushare.podAnnotations" -}}
{{- with .podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Argument: a part's values. Further entries of a list `env`. */}}
{{- define "gpushare.extraEnv" -}}
{{- with .extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
"true" where the object is this release's, or does not exist: Helm refuses to install over one of another hand.
Argument: (dict "root" $ "apiVersion" VERSION "kind" KIND "namespace" NAMESPACE "name" NAME).
*/}}
{{- define "gpushare.isOurs" -}}
{{- $live := lookup .apiVersion .kind .namespace .name }}
{{- $annotations := $live.metadata | default dict | dig "annotations" dict }}
{{- $name := dig "meta.helm.sh/release-name" "" $annotations }}
{{- $namespace := dig "meta.helm.sh/release-namespace" "" $annotations }}
{{- if or (not $live) (and (eq $name .root.Release.Name) (eq $namespace .root.Release.Namespace)) -}}
true
{{- end }}
{{- end }}
