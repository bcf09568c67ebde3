// Package deploy_test tests the files in the directory deploy as far as one machine without a cluster
// can. It compares the manifests with the schemas of Kubernetes, and runs their commands as
// processes.
package deploy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/certs"
	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/pgroup"
)

// testTimeout is the timeout of operations that should be immediate.
const testTimeout = 30 * time.Second

func TestMain(m *testing.M) {
	testcluster.Children{"rank": rank}.Run()
	testcluster.Leaks(m)
}

// rank is the program in the job's image: it prints the contributions of all ranks.
func rank(ctx context.Context, _ string) error {
	ctx, cancel := context.WithTimeout(ctx, testTimeout)
	defer cancel()
	cfg, err := pgroup.FromEnv()
	if err != nil {
		return err
	}
	g, err := pgroup.Create(ctx, cfg)
	if err != nil {
		return err
	}
	all, err := pgroup.AllGather(ctx, g, g.Rank())
	if err != nil {
		return err
	}
	fmt.Println(cfg.Run, cfg.Host, all)
	return g.Shutdown(ctx)
}

// static builds the command as for the image, and returns its path. With these flags the compiler
// builds all dependencies once more.
func static(t *testing.T) string {
	t.Helper()
	line := regexp.MustCompile(`RUN (CGO_ENABLED=0) (go build .*) -o \S+ \./(\S+)`).FindStringSubmatch(read(t, "Containerfile"))
	require.NotNil(t, line)
	exe := filepath.Join(t.TempDir(), "muster")
	args := append(strings.Fields(line[2])[1:], "-o", exe, "../../"+line[3])
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), line[1])
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return exe
}

// read returns the text of a file below the directory deploy.
func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../../deploy", file))
	require.NoError(t, err)
	return string(b)
}

// server is a running muster serve.
type server struct {
	cmd         *exec.Cmd
	url, health string
	secret, ca  string // files of its clients: its secret, and what verifies its certificate; "" is none
}

// serve starts cmd. In its arguments, an address on all interfaces is replaced with a free port of
// loopback.
func serve(t *testing.T, cmd *exec.Cmd) *server {
	t.Helper()
	listens := regexp.MustCompile(`^(--\w+=)?:(7070|8080|8081)$`)
	for i, a := range cmd.Args {
		cmd.Args[i] = listens.ReplaceAllString(a, "${1}127.0.0.1:0")
	}
	checked := slices.ContainsFunc(cmd.Args, func(a string) bool { return strings.HasPrefix(a, "--health") })
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	s := &server{cmd: cmd}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	said, last := bufio.NewReader(stderr), ""
	for s.health == "" && checked {
		line, err := said.ReadString('\n')
		require.NoError(t, err, "%s", last)
		last = line
		_, url, _ := strings.Cut(strings.TrimSpace(line), "health=")
		s.health = strings.TrimSuffix(url, "/healthz")
	}
	go func() { _, _ = io.Copy(io.Discard, said) }()
	s.url, err = bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	s.url = strings.TrimSpace(s.url)
	return s
}

// probe returns the status code that a kubelet would get.
func (s *server) probe(t *testing.T, p probe) int {
	t.Helper()
	client := http.Client{Timeout: time.Duration(p.TimeoutSeconds) * time.Second}
	defer client.CloseIdleConnections()
	rep, err := client.Get(s.health + p.HTTPGet.Path)
	require.NoError(t, err)
	defer rep.Body.Close()
	return rep.StatusCode
}

// stop ends the server as an orchestrator does: with SIGTERM, and SIGKILL after grace.
func (s *server) stop(t *testing.T, grace time.Duration) {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	timer := time.AfterFunc(grace, func() { _ = s.cmd.Process.Kill() })
	defer timer.Stop()
	assert.NoError(t, s.cmd.Wait())
}

// call runs a command of muster on the store.
func (s *server) call(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testcluster.Command(t), args...)
	cmd.Env = append(os.Environ(), "MUSTER_STORE="+s.url, "MUSTER_SECRET_FILE="+s.secret, "MUSTER_TLS_CA="+s.ca)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

// keys is a directory with ca.pem, and the same as etcd-ca.pem, server.pem, server-key.pem, etcd.pem,
// etcd-key.pem and secret.
type keys string

func makeKeys(t *testing.T) keys {
	t.Helper()
	k := keys(t.TempDir())
	_, err := certs.Make(string(k), certs.Options{Hosts: []string{"127.0.0.1"}, Names: []string{"etcd"}})
	require.NoError(t, err)
	require.NoError(t, os.Link(k.at("ca.pem"), k.at("etcd-ca.pem")))
	secretFile(t, string(k))
	return k
}

func (k keys) at(name string) string { return filepath.Join(string(k), name) }

// folder creates a directory with files of k, under the given names.
func (k keys) folder(t *testing.T, names map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, from := range names {
		require.NoError(t, os.Link(k.at(from), filepath.Join(dir, name)))
	}
	return dir
}

// secretFile creates a file with a secret.
func secretFile(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("5e"), 32), 0o600))
	return file
}

// pods are those of a stateful set, as processes.
type pods struct {
	service, set object
	mounts       map[string]string // where their volumes are
	secret, tls  string            // what is in the place of two of these
}

func newPods(t *testing.T, k keys, service, set object) *pods {
	t.Helper()
	assert.Equal(t, service.Metadata.Name, set.Spec.ServiceName)
	assert.Equal(t, service.Spec.Selector, set.Spec.Template.Metadata.Labels)
	assert.EqualValues(t, 7070, service.Spec.Ports[0].Port)
	p := &pods{
		service: service, set: set, mounts: map[string]string{},
		secret: k.folder(t, map[string]string{"secret": "secret"}),
		tls:    k.folder(t, map[string]string{"ca.crt": "ca.pem", "tls.crt": "server.pem", "tls.key": "server-key.pem"}),
	}
	for _, m := range p.container().VolumeMounts {
		p.mounts[m.Name] = m.MountPath
	}
	return p
}

func (p *pods) container() container { return p.set.Spec.Template.Spec.Containers[0] }

func (p *pods) grace() time.Duration {
	return time.Duration(p.set.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
}

// here replaces what text has of the cluster: more, as for strings.NewReplacer, and the volumes.
func (p *pods) here(text string, more ...string) string {
	return strings.NewReplacer(append(more, p.mounts["tls"], p.tls, p.mounts["secret"], p.secret)...).Replace(text)
}

// start starts a pod, and lets a kubelet look at it.
func (p *pods) start(t *testing.T, more ...string) *server {
	t.Helper()
	var args []string
	for _, a := range p.container().Args {
		args = append(args, p.here(a, more...))
	}
	s := serve(t, exec.Command(testcluster.Command(t), args...))
	s.secret, s.ca = filepath.Join(p.secret, "secret"), filepath.Join(p.tls, "ca.crt")
	assert.Equal(t, 200, s.probe(t, p.container().LivenessProbe))
	assert.Equal(t, 200, s.probe(t, p.container().ReadinessProbe), "a rolling update waits for it, a standby's too")
	return s
}

// TestKubernetes checks that the container of the stateful set serves, stops, and restarts with its
// volume, and that the pods of the job meet there.
func TestKubernetes(t *testing.T) {
	objects := documents(t, "kubernetes/store.yaml", "Service", "StatefulSet")
	p, volume := newPods(t, makeKeys(t), objects[0], objects[1]), t.TempDir()
	s := p.start(t, p.mounts["data"], volume)
	s.call(t, "set", "kept", "yes")
	s.stop(t, p.grace())
	s = p.start(t, p.mounts["data"], volume)
	assert.Equal(t, "yes", s.call(t, "get", "kept"))
	assert.EqualValues(t, 1, p.set.Spec.Replicas)
	checkJob(t, s, fmt.Sprintf("muster://%s-0.%s:7070", p.set.Metadata.Name, p.service.Metadata.Name))
}

// checkJob starts the pods of the job as processes; url is the URL of the store in the cluster.
func checkJob(t *testing.T, s *server, url string) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	job := documents(t, "kubernetes/job.yaml", "Job")[0]
	c := job.Spec.Template.Spec.Containers[0]
	assert.Equal(t, job.Spec.Completions, job.Spec.Parallelism)
	assert.Equal(t, "Indexed", job.Spec.CompletionMode)
	assert.Equal(t, "tls", c.VolumeMounts[1].Name)
	items := job.Spec.Template.Spec.Volumes[1].Secret.Items
	assert.Equal(t, []labels{{"key": "ca.crt", "path": "ca.crt"}}, items, "a job does not get the store's key")
	replaced := strings.NewReplacer(url, s.url, c.VolumeMounts[1].MountPath+"/ca.crt", s.ca, c.VolumeMounts[0].MountPath, filepath.Dir(s.secret))
	var env []string
	for _, v := range c.Env {
		value := replaced.Replace(v.Value)
		if v.ValueFrom != nil {
			value = "of-" + strings.ToLower(v.Name)
		}
		env = append(env, v.Name+"="+value)
	}
	said := make([]bytes.Buffer, job.Spec.Completions)
	pods := make([]*exec.Cmd, job.Spec.Completions)
	for i := range pods {
		pods[i] = exec.CommandContext(t.Context(), exe)
		pods[i].Env = slices.Concat(env, testcluster.Env("rank", ""), []string{"JOB_COMPLETION_INDEX=" + strconv.Itoa(i)})
		pods[i].Stdout, pods[i].Stderr = &said[i], &said[i]
		require.NoError(t, pods[i].Start())
	}
	for i, pod := range pods {
		assert.NoError(t, pod.Wait(), "%s", &said[i])
		assert.Equal(t, "of-muster_run of-muster_host [0 1 2 3]\n", said[i].String())
	}
}

// TestImage runs the image's command in an otherwise empty root directory, as the image's user. It
// requires root.
func TestImage(t *testing.T) {
	testcluster.SoakOnly(t, "it builds all dependencies once more, with the flags of the image")
	file := read(t, "Containerfile")
	word := func(name string) (args []string) {
		m := regexp.MustCompile(`(?m)^` + name + ` (\[.*\])$`).FindStringSubmatch(file)
		require.NotNil(t, m, name)
		require.NoError(t, json.Unmarshal([]byte(m[1]), &args))
		return args
	}
	user := regexp.MustCompile(`(?m)^USER (\d+):(\d+)$`).FindStringSubmatch(file)
	require.NotNil(t, user)
	uid, err := strconv.Atoi(user[1])
	require.NoError(t, err)
	require.NotZero(t, uid)
	require.Equal(t, user[1], user[2])
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: it takes root to be another user in a directory of its own")
	}
	root := t.TempDir()
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	exe := static(t)
	require.NoError(t, os.Rename(exe, filepath.Join(root, word("ENTRYPOINT")[0])))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "etc/muster"), 0o755))
	secret := secretFile(t, filepath.Join(root, "etc/muster"))
	require.NoError(t, os.Chown(secret, uid, uid))
	cmd := exec.Command(word("ENTRYPOINT")[0], word("CMD")...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	s := serve(t, cmd)
	s.secret = secret
	assert.Contains(t, s.call(t, "ping"), "answered in")
	s.stop(t, testTimeout)
}

// unit is the text of a systemd unit.
type unit string

// find returns what a pattern has in parentheses, in the line that it matches.
func (u unit) find(t *testing.T, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + pattern + `$`).FindStringSubmatch(string(u))
	require.NotNil(t, m, pattern)
	return m[1]
}

// credentials returns a directory with those that the unit has, or that its comments propose.
func (u unit) credentials(t *testing.T, k keys) string {
	t.Helper()
	files := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(?:#   )?LoadCredential=(\S+):/etc/muster/(\S+)$`).FindAllStringSubmatch(string(u), -1) {
		files[m[1]] = m[2]
	}
	require.NotEmpty(t, files)
	return k.folder(t, files)
}

// command returns the unit's command, with replacements as for strings.NewReplacer.
func (u unit) command(t *testing.T, replace ...string) *exec.Cmd {
	t.Helper()
	return exec.Command(testcluster.Command(t), strings.Fields(strings.NewReplacer(replace...).Replace(u.find(t, `ExecStart=muster (.*)`)))...)
}

// TestSystemd runs the commands of the units, with the drop-ins that their comments propose: a store
// with TLS and a secret, and a relay that reaches it, and says when it is ready. It verifies the units
// with systemd-analyze if it is installed.
func TestSystemd(t *testing.T) {
	k := makeKeys(t)
	u := unit(read(t, "systemd/muster.service"))
	args := strings.NewReplacer("10.0.0.5:7070", "127.0.0.1:0", "%d", u.credentials(t, k)).Replace(u.find(t, `#   Environment="MUSTER_SERVE_ARGS=(.*)"`))
	s := serve(t, u.command(t, "%S", t.TempDir(), "$MUSTER_SERVE_ARGS", args))
	s.secret, s.ca = k.at("secret"), k.at("ca.pem")
	assert.Contains(t, s.call(t, "ping"), "answered in")

	ready, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	require.NoError(t, err)
	defer ready.Close()
	u = unit(read(t, "systemd/muster-relay.service"))
	in := strings.NewReplacer("%d", u.credentials(t, k), "muster://10.0.0.5:7070", s.url)
	relay := u.command(t, "$MUSTER_RELAY_ARGS", "--listen 127.0.0.1:0 "+in.Replace(u.find(t, `#   Environment="MUSTER_RELAY_ARGS=(.*)"`)))
	relay.Env = append(os.Environ(), "MUSTER_STORE="+in.Replace(u.find(t, `#   Environment=MUSTER_STORE=(.*)`)), "NOTIFY_SOCKET="+ready.LocalAddr().String())
	r := serve(t, relay)
	r.secret = s.secret
	assert.Contains(t, r.call(t, "ping"), "answered in")
	require.NoError(t, ready.SetReadDeadline(time.Now().Add(testTimeout)))
	said := make([]byte, 100)
	n, err := ready.Read(said)
	require.NoError(t, err)
	assert.Equal(t, "READY=1", string(said[:n]))
	r.stop(t, testTimeout)
	s.stop(t, testTimeout)
	verify(t, "muster.service", "muster-relay.service")
}

// exposure is the limit of what "systemd-analyze security" computes for a unit, times ten: 0 is the
// strictest sandbox, 100 is none.
const exposure = "20"

// verify checks units with systemd-analyze if it is installed.
func verify(t *testing.T, names ...string) {
	t.Helper()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("SKIPPED: no systemd-analyze here to verify the units (apt-get install systemd)")
	}
	for _, name := range names {
		unit := strings.ReplaceAll(read(t, "systemd/"+name), "ExecStart=muster", "ExecStart="+testcluster.Command(t))
		file := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(file, []byte(unit), 0o600))
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", file).CombinedOutput()
		assert.NoError(t, err, "%s", out)
		assert.Empty(t, string(out))
		out, err = exec.CommandContext(t.Context(), analyze, "security", "--offline=yes", "--no-pager", "--threshold="+exposure, file).CombinedOutput()
		assert.NoError(t, err, "%s", out)
	}
}
