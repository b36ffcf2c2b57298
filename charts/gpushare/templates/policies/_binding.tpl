{{/* Argument: (dict "root" $ "name" NAME "actions" ACTIONS); without actions, Deny. */}}
{{- define "gpushare.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels: {{- include "gpushare.labels" (dict "root" .root "component" "policies") | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: {{ .actions | default (list "Deny") | toJson }}
{{- end }}

{{/* Argument: (dict "root" $ "part" PART). Only requests of that part's ServiceAccount are judged. */}}
{{- define "gpushare.byPart" -}}
matchConditions:
  - name: by-the-{{ .part }}
    expression: request.userInfo.username == 'system:serviceaccount:{{ .root.Release.Namespace }}:gpushare-{{ .part }}'
{{- end }}
