{{- /* Labels of an object: (dict "root" $ "part" "nats") */ -}}
{{- define "wooly.labels" -}}
{{ include "wooly.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "wooly.selector" -}}
app.kubernetes.io/name: wooly
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "wooly.name" -}}
{{ .root.Release.Name }}-{{ .part }}
{{- end }}

{{- define "wooly.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "wooly.gpuImage" -}}
{{ .Values.gpuImage.repository }}:{{ .Values.gpuImage.tag | default .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "wooly.busURLs" -}}
{{- if .Values.nats.externalURLs -}}
{{ join "," .Values.nats.externalURLs }}
{{- else -}}
tls://{{ .Release.Name }}-nats.{{ .Release.Namespace }}.svc:4222
{{- end -}}
{{- end }}

{{- define "wooly.controllerURL" -}}
https://{{ .Release.Name }}-controller.{{ .Release.Namespace }}.svc:8080
{{- end }}

{{- /* What every pod of the release has: a user without privileges, and nothing of Kubernetes that it does not need. */ -}}
{{- define "wooly.pod" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "wooly.selector" . | nindent 8 }}
{{- end }}

{{- define "wooly.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- /* Variables of a service of ours, and those that its identity needs: (dict "root" $ "part" "controller" "env" map) */ -}}
{{- define "wooly.env" -}}
- {name: WOOLY_NATS_URL, value: {{ include "wooly.busURLs" .root | quote }}}
{{- if and (not .root.Values.nats.externalURLs) (gt (int .root.Values.nats.replicas) 1) }}
- {name: WOOLY_BUS_REPLICAS, value: {{ .root.Values.nats.replicas | quote }}}
{{- end }}
- {name: WOOLY_AUTH, value: "on"}
- {name: WOOLY_NATS_NKEY, value: /keyring/nats.nk}
- {name: WOOLY_SEAL_KEY, value: /keyring/seal.key}
- {name: WOOLY_TLS_CA, value: /keyring/ca.pem}
- {name: WOOLY_TLS_CERT, value: /keyring/cert.pem}
- {name: WOOLY_TLS_KEY, value: /keyring/key.pem}
{{- with .root.Values.observe.otlpEndpoint }}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
{{- end }}
{{- range $name, $value := .env }}
- {name: {{ $name }}, value: {{ $value | toString | quote }}}
{{- end }}
{{- end }}

{{- define "wooly.claim" -}}
- metadata: {name: data}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .storage }}}}
{{- end }}

{{- /* Other pods stay while nodes are drained: (dict "root" $ "part" "controller") */ -}}
{{- define "wooly.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "wooly.name" . }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{ include "wooly.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{ include "wooly.selector" . | nindent 6 }}
{{- end }}

{{- /* Annotations of a hook that runs before an install or upgrade, in the order of its weight. */ -}}
{{- define "wooly.hook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
