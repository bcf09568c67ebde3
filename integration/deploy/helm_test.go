package deploy_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/testcluster"
)

const chartDir = "helm/muster"

// values are values of the chart, as in a values file.
type values = map[string]any

// over returns v with the values of o in place of its own, as Helm merges them.
func over(v, o values) values {
	merged := maps.Clone(v)
	for k, x := range o {
		inner, isMap := x.(values)
		under, wasMap := merged[k].(values)
		if isMap && wasMap {
			merged[k] = over(under, inner)
		} else {
			merged[k] = x
		}
	}
	return merged
}

// render returns the text of all templates of the chart, by name. It does what Helm's engine does:
// it merges the values into the defaults, compares them with the schema, and executes the templates
// with sprig's functions and Helm's own. Helm's engine itself imports client-go, which
// takes minutes to build.
func render(t *testing.T, release string, set values) (map[string]string, error) {
	t.Helper()
	var chart struct{ Name, Version, AppVersion string }
	require.NoError(t, yaml.Unmarshal([]byte(read(t, chartDir+"/Chart.yaml")), &chart))
	require.Equal(t, "v"+chart.Version, chart.AppVersion)
	var defaults values
	require.NoError(t, yaml.UnmarshalStrict([]byte(read(t, chartDir+"/values.yaml")), &defaults))
	all := over(defaults, set)
	document, err := json.Marshal(all)
	require.NoError(t, err)
	if err := validate(t, chartDir+"/values.schema.json", "", document); err != nil {
		return nil, err
	}

	root := template.New("muster").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	delete(functions, "env") // Helm does not have these two
	delete(functions, "expandenv")
	functions["include"] = func(name string, data any) (string, error) {
		var b strings.Builder
		err := root.ExecuteTemplate(&b, name, data)
		return b.String(), err
	}
	functions["toYaml"] = func(v any) (string, error) {
		b, err := yaml.Marshal(v)
		return strings.TrimSuffix(string(b), "\n"), err
	}
	functions["required"] = func(message string, v any) (any, error) {
		if v == nil || v == "" {
			return nil, fmt.Errorf("%s", message)
		}
		return v, nil
	}
	files, err := filepath.Glob("../../deploy/" + chartDir + "/templates/*")
	require.NoError(t, err)
	root.Funcs(functions)
	for _, f := range files {
		_, err := root.New(filepath.Base(f)).Parse(read(t, filepath.Join(chartDir, "templates", filepath.Base(f))))
		require.NoError(t, err)
	}
	out := map[string]string{}
	for _, f := range files {
		var b strings.Builder
		err := root.ExecuteTemplate(&b, filepath.Base(f), values{
			"Values": all, "Chart": chart, "Release": values{"Name": release, "Namespace": "default", "Service": "Helm"},
		})
		if err != nil {
			return nil, err
		}
		out[filepath.Base(f)] = b.String()
	}
	return out, nil
}

var (
	durable    = values{"secretName": "muster", "tls": values{"secretName": "muster-tls"}}
	replicated = over(durable, values{"etcd": values{
		"enabled": true, "url": "etcds://etcd-client.etcd:2379/jobs", "secretName": "muster-etcd",
	}})
	monitored = values{"metrics": values{
		"enabled": true, "secretName": "page", "serviceMonitor": values{"enabled": true, "labels": values{"release": "prometheus"}},
	}}
)

// TestHelm checks that the chart renders the objects of the plain manifests, which other tests run.
func TestHelm(t *testing.T) {
	t.Parallel()
	// What the chart adds to the plain manifests.
	added := regexp.MustCompile(`(?m)^ +(app\.kubernetes\.io/(instance|version|managed-by)|helm\.sh/chart|imagePullPolicy): .*\n`)
	image := regexp.MustCompile(`image: "?muster\S*`)
	alike := func(text string) string {
		return image.ReplaceAllString(added.ReplaceAllString(text, ""), "image: muster")
	}
	for file, tc := range map[string]struct {
		set  values
		url  string
		want []string
	}{
		"kubernetes/store.yaml":      {durable, "muster-0.muster:7070", []string{"service.yaml", "statefulset.yaml"}},
		"kubernetes/store-etcd.yaml": {replicated, "muster-0.muster:7070,muster-1.muster:7070,muster-2.muster:7070", []string{"service.yaml", "disruption.yaml", "statefulset.yaml"}},
	} {
		out, err := render(t, "muster", tc.set)
		require.NoError(t, err)
		parts := strings.Split(read(t, file), "\n---\n")
		require.Len(t, parts, len(tc.want))
		for i, name := range tc.want {
			_, err := parse(t, out[name])
			require.NoError(t, err, "%s, %s", file, name)
			assert.YAMLEq(t, alike(parts[i]), alike(out[name]), "%s, %s", file, name)
			assert.Contains(t, out[name], "app.kubernetes.io/instance: muster")
			delete(out, name)
		}
		url := "muster://" + tc.url + "?ca=/etc/muster-tls/ca.crt&secret-file=/etc/muster/secret"
		assert.Contains(t, out["NOTES.txt"], url)
		assert.Contains(t, read(t, file), "# "+url+"\n")
		delete(out, "NOTES.txt")
		for name, text := range out {
			assert.Empty(t, strings.TrimSpace(text), name)
		}
	}
}

// TestHelmRefuses checks that wrong values are errors that name the value.
func TestHelmRefuses(t *testing.T) {
	t.Parallel()
	etcd := func(v values) values { return over(durable, values{"etcd": v}) }
	for want, set := range map[string]values{
		`secretName: set it to a Secret with the key "secret"`:           {},
		"tls.secretName: set it to a Secret with tls.crt":                {"secretName": "muster"},
		"etcd.url: set it to the URL of the etcd":                        etcd(values{"enabled": true}),
		"etcd.secretName: set it to a Secret with ca.crt":                etcd(values{"enabled": true, "url": "etcds://a:2379/jobs"}),
		"etcd.secretName: the URL of etcd is without TLS":                etcd(values{"enabled": true, "url": "etcd://a:2379/jobs", "secretName": "x"}),
		"etcd.enabled: set it to true":                                   etcd(values{"url": "etcds://a:2379/jobs"}),
		"metrics.secretName: set it to a Secret with username":           over(durable, values{"metrics": values{"enabled": true}}),
		"metrics.enabled: the status page requires TLS":                  over(over(durable, monitored), values{"tls": values{"enabled": false}}),
		"metrics.serviceMonitor.enabled: set metrics.enabled":            over(durable, values{"metrics": values{"serviceMonitor": values{"enabled": true}}}),
		"at '/etcd/url': 'http://a:2379' does not match pattern":         etcd(values{"enabled": true, "url": "http://a:2379"}),
		"at '/etcd/url': 'etcds://a:2379/jobs?ca=x' does not match":      etcd(values{"enabled": true, "url": "etcds://a:2379/jobs?ca=x"}),
		"additional properties 'secret' not allowed":                     over(durable, values{"secret": "muster"}),
		"at '/tls': additional properties 'secret' not allowed":          over(durable, values{"tls": values{"secret": "x"}}),
		"at '/replicas': minimum: got 1, want 2":                         over(replicated, values{"replicas": 1}),
		"at '/secretName': 'My Secret' does not match pattern":           over(durable, values{"secretName": "My Secret"}),
		"at '/storage/size': '10' does not match pattern":                over(durable, values{"storage": values{"size": "10"}}),
		"at '/extraArgs/0': 'max-bytes' does not match pattern '^--'":    over(durable, values{"extraArgs": []any{"max-bytes"}}),
		"at '/metrics/serviceMonitor/interval': '30' does not match pat": over(durable, values{"metrics": values{"serviceMonitor": values{"interval": "30"}}}),
	} {
		_, err := render(t, "muster", set)
		assert.ErrorContains(t, err, want)
	}
}

// TestHelmOptions sets the other values, and runs the process of the stateful set: its page has
// metrics, for a client with the TLS settings and the password of the service monitor.
func TestHelmOptions(t *testing.T) {
	t.Parallel()
	out, err := render(t, "trainers", over(over(durable, monitored), values{
		"image": values{"repository": "registry.example/muster", "tag": "v9"}, "extraArgs": []any{"--max-bytes=1GiB"},
		"storage": values{"className": "fast"}, "tolerations": []any{values{"key": "k", "operator": "Exists"}},
	}))
	require.NoError(t, err)
	service, err := parse(t, out["service.yaml"])
	require.NoError(t, err)
	set, err := parse(t, out["statefulset.yaml"])
	require.NoError(t, err)
	pod := set.Spec.Template.Spec
	assert.Equal(t, "trainers-muster", set.Metadata.Name)
	assert.Equal(t, set.Metadata.Name, service.Metadata.Name)
	assert.Equal(t, set.Metadata.Name, set.Spec.ServiceName)
	assert.Equal(t, service.Spec.Selector, set.Spec.Template.Metadata.Labels)
	assert.Equal(t, "registry.example/muster:v9", pod.Containers[0].Image)
	assert.Equal(t, "fast", set.Spec.VolumeClaimTemplates[0].Spec.StorageClassName)
	assert.Equal(t, []labels{{"key": "k", "operator": "Exists"}}, pod.Tolerations)

	type ref struct{ Name, Key string }
	var monitor struct {
		APIVersion, Kind string
		Metadata         struct {
			Name   string
			Labels labels
		}
		Spec struct {
			Selector  struct{ MatchLabels labels }
			Endpoints []struct {
				Port, Path, Scheme, Interval string
				TLSConfig                    struct {
					CA         struct{ Secret ref }
					ServerName string
				}
				BasicAuth struct{ Username, Password ref }
			}
		}
	}
	require.NoError(t, yaml.UnmarshalStrict([]byte(out["servicemonitor.yaml"]), &monitor))
	assert.Equal(t, "prometheus", monitor.Metadata.Labels["release"])
	assert.Equal(t, service.Spec.Selector, monitor.Spec.Selector.MatchLabels)
	for k, v := range monitor.Spec.Selector.MatchLabels {
		assert.Equal(t, v, service.Metadata.Labels[k])
	}
	end := monitor.Spec.Endpoints[0]
	assert.Equal(t, service.Spec.Ports[1].Name, end.Port)
	assert.Equal(t, "trainers-muster-0.trainers-muster", end.TLSConfig.ServerName)
	assert.Equal(t, []ref{{"muster-tls", "ca.crt"}, {"page", "username"}, {"page", "password"}}, []ref{end.TLSConfig.CA.Secret, end.BasicAuth.Username, end.BasicAuth.Password})
	scrape(t, set, end.TLSConfig.ServerName, end.Path)
}

// scrape starts the process of a stateful set, and gets its metrics as Prometheus does.
func scrape(t *testing.T, set object, serverName, path string) {
	t.Helper()
	dir := t.TempDir()
	_, err := certs.Make(filepath.Join(dir, "tls"), certs.Options{Hosts: []string{serverName}})
	require.NoError(t, err)
	secretFile(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "password"), []byte("password-of-the-page"), 0o600))
	here := strings.NewReplacer("/var/lib/muster", filepath.Join(dir, "data"), "/etc/muster-tls/tls.crt", dir+"/tls/server.pem",
		"/etc/muster-tls/tls.key", dir+"/tls/server-key.pem", "/etc/muster-metrics", dir, "/etc/muster/", dir+"/", ":8081", "127.0.0.1:0")
	var args []string
	for _, a := range set.Spec.Template.Spec.Containers[0].Args {
		args = append(args, here.Replace(a))
	}
	s := serve(t, exec.Command(testcluster.Command(t), args...))
	pem, err := os.ReadFile(filepath.Join(dir, "tls", "ca.pem"))
	require.NoError(t, err)
	ca := x509.NewCertPool()
	require.True(t, ca.AppendCertsFromPEM(pem))
	client := http.Client{Timeout: testTimeout, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca, ServerName: serverName, MinVersion: tls.VersionTLS13}}}
	defer client.CloseIdleConnections()
	for password, want := range map[string]int{"password-of-the-page": http.StatusOK, "another": http.StatusUnauthorized} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(s.page, "/")+path, http.NoBody)
		require.NoError(t, err)
		req.SetBasicAuth("prometheus", password)
		rep, err := client.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(rep.Body)
		require.NoError(t, err)
		require.NoError(t, rep.Body.Close())
		assert.Equal(t, want, rep.StatusCode)
		assert.Equal(t, want == http.StatusOK, bytes.Contains(body, []byte("muster_store_")), "%.300s", body)
	}
	s.stop(t, testTimeout)
}
