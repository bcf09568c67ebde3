{{/* The name of all objects: that of the release, with "muster" in it. */}}
{{- define "muster.name" -}}
{{- if contains "muster" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-muster" (.Release.Name | trunc 43 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "muster.selector" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "muster.labels" -}}
{{ include "muster.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Fails if values that belong together are missing. */}}
{{- define "muster.check" -}}
{{- $_ := required "secretName: set it to a Secret with the key \"secret\"; kubectl create secret generic muster --from-literal=secret=\"$(openssl rand -hex 32)\" makes one" .Values.secretName -}}
{{- if .Values.tls.enabled -}}
{{- $_ := required "tls.secretName: set it to a Secret with tls.crt, tls.key and ca.crt, or disable TLS (tls.enabled=false)" .Values.tls.secretName -}}
{{- end -}}
{{- if .Values.etcd.enabled -}}
{{- $_ := required "etcd.url: set it to the URL of the etcd that keeps the store: etcds://host:2379/root" .Values.etcd.url -}}
{{- if hasPrefix "etcds://" .Values.etcd.url -}}
{{- $_ := required "etcd.secretName: set it to a Secret with ca.crt, tls.crt and tls.key for etcds://" .Values.etcd.secretName -}}
{{- else if .Values.etcd.secretName -}}
{{- fail "etcd.secretName: the URL of etcd is without TLS: use etcds://" -}}
{{- end -}}
{{- else if or .Values.etcd.url .Values.etcd.secretName -}}
{{- fail "etcd.enabled: set it to true to use etcd.url and etcd.secretName" -}}
{{- end -}}
{{- if .Values.metrics.enabled -}}
{{- $_ := required "metrics.secretName: set it to a Secret with username and password" .Values.metrics.secretName -}}
{{- if not .Values.tls.enabled -}}
{{- fail "metrics.enabled: the status page requires TLS: set tls.enabled" -}}
{{- end -}}
{{- else if .Values.metrics.serviceMonitor.enabled -}}
{{- fail "metrics.serviceMonitor.enabled: set metrics.enabled too" -}}
{{- end -}}
{{- end -}}

{{/* The addresses of all pods: host:port,host:port. */}}
{{- define "muster.addresses" -}}
{{- $name := include "muster.name" . -}}
{{- $all := list -}}
{{- range $i := until (int (ternary .Values.replicas 1 .Values.etcd.enabled)) -}}
{{- $all = append $all (printf "%s-%d.%s:7070" $name $i $name) -}}
{{- end -}}
{{- join "," $all -}}
{{- end -}}
