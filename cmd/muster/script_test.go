package main_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/muster-pg/muster/internal/testcluster"
	"github.com/muster-pg/muster/store"
	"github.com/muster-pg/muster/tensor"
	"github.com/muster-pg/muster/tensor/safetensors"
	"github.com/muster-pg/muster/wire"
)

// TestScripts runs testdata/script/*.txt: commands, and what they print. In addition to the commands
// of package testscript, there are
//
//	$DUMPS                   is the directory with recordings of package flightrecorder
//	store NAME [FLAG…]       starts "muster serve"; $NAME is its URL, and $NAME_ADDR its host:port
//	relay NAME [FLAG…]       likewise, for "muster relay"
//	ends NAME SIGNAL         sends a signal to a server, INT, TERM or KILL, and waits for its end; NAME.log is its log
//	etcd NAME                starts an etcd; $NAME is its host:port
//	port NAME                $NAME is a port at which nothing listens
//	prints TEXT COMMAND…     COMMAND prints TEXT and a newline, nothing else, and succeeds; '' is nothing
//	fails CODE TEXT COMMAND… COMMAND exits with CODE, and prints one line to stderr, which has TEXT
//	stuck STORE GROUP        has rank 0 of 2 wait in a barrier of a group; STORE is a URL, or a file that has it
//	holds HOST:PORT          connects a client, which stays when its server stops
//	http CODE URL [TEXT…]    gets URL until the answer has this code and all texts
//	tensors FILE [@KEY=VALUE…] [NAME=DTYPE[DIM,…][:BYTE]…] writes a safetensors file: metadata, and tensors
//	                         whose bytes are all BYTE, or 0
func TestScripts(t *testing.T) {
	t.Parallel()
	testcluster.Shell(t)
	dumps, err := filepath.Abs("../../internal/flightrecorder/testdata")
	require.NoError(t, err)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			// Isolates the scripts: by default a job of another test is not found.
			e.Setenv("XDG_RUNTIME_DIR", os.DevNull)
			e.Setenv("GORACE", os.Getenv("GORACE"))
			e.Setenv("DUMPS", dumps)
			e.Values[serversKey] = servers{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"store": background("serve"), "relay": background("relay"), "ends": scriptEnds, "prints": scriptPrints, "fails": scriptFails, "tensors": scriptTensors, "http": scriptHTTP, "holds": scriptHolds,
			"etcd":  func(ts *testscript.TestScript, _ bool, args []string) { ts.Setenv(args[0], etcd(t)) },
			"stuck": func(ts *testscript.TestScript, _ bool, args []string) { scriptStuck(t, ts, args) },
			"port": func(ts *testscript.TestScript, _ bool, args []string) {
				_, port, err := net.SplitHostPort(testcluster.Port(t))
				ts.Check(err)
				ts.Setenv(args[0], port)
			},
		},
	})
}

// servers are the servers of a script, by their names; serversKey is their key in testscript.Env.Values.
type servers map[string]*exec.Cmd

const serversKey = "servers"

// background returns the script command that starts a server.
func background(command string) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) == 0 {
			ts.Fatalf("usage: store or relay NAME [FLAG…]")
		}
		startServer(ts, command, args)
	}
}

func startServer(ts *testscript.TestScript, command string, args []string) {
	flags := args[1:]
	if !slices.Contains(flags, "--listen") {
		flags = append(flags, "--listen", "127.0.0.1:0")
	}
	self, err := os.Executable()
	ts.Check(err)
	cmd := exec.Command(self, append([]string{command}, flags...)...)
	cmd.Env, cmd.Dir = append(os.Environ(), role+"="+roleMuster), ts.MkAbs(".")
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	log, err := os.Create(ts.MkAbs(args[0] + ".log"))
	ts.Check(err)
	defer log.Close()
	cmd.Stderr = log
	ts.Check(cmd.Start())
	ts.Value(serversKey).(servers)[args[0]] = cmd
	ts.Defer(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	defer time.AfterFunc(limit, func() { _ = cmd.Process.Kill() }).Stop()
	url, err := bufio.NewReader(out).ReadString('\n')
	ts.Check(err)
	url = strings.TrimSpace(url)
	ts.Setenv(args[0], url)
	ts.Setenv(args[0]+"_ADDR", strings.TrimPrefix(url, "muster://"))
}

func scriptEnds(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: ends NAME SIGNAL")
	}
	cmd := ts.Value(serversKey).(servers)[args[0]]
	sig := map[string]os.Signal{"INT": os.Interrupt, "TERM": syscall.SIGTERM, "KILL": os.Kill}[args[1]]
	ts.Check(cmd.Process.Signal(sig))
	defer time.AfterFunc(limit, func() { _ = cmd.Process.Kill() }).Stop()
	if err := cmd.Wait(); sig != os.Kill {
		ts.Check(err)
	}
}

func scriptPrints(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: prints TEXT COMMAND…")
	}
	ts.Check(ts.Exec(args[1], args[2:]...))
	want := strings.NewReplacer(`\n`, "\n", `\t`, "\t").Replace(args[0])
	if want != "" {
		want += "\n"
	}
	if got, said := ts.ReadFile("stdout"), ts.ReadFile("stderr"); got != want || said != "" {
		ts.Fatalf("it prints %q, and %q to stderr; want %q", got, said, want)
	}
}

func scriptFails(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: fails CODE TEXT COMMAND…")
	}
	code, err := strconv.Atoi(args[0])
	ts.Check(err)
	ended, ok := errors.AsType[*exec.ExitError](ts.Exec(args[2], args[3:]...))
	if !ok || ended.ExitCode() != code {
		ts.Fatalf("it exits with %v, not %d", ended, code)
	}
	said := ts.ReadFile("stderr")
	if strings.Count(said, "\n") != 1 || !strings.HasPrefix(said, "muster: ") || !strings.Contains(said, args[1]) || ts.ReadFile("stdout") != "" {
		ts.Fatalf("stderr is %q, not one line with %q, or something is on stdout", said, args[1])
	}
}

func scriptStuck(t *testing.T, ts *testscript.TestScript, args []string) {
	url := args[0]
	if !strings.Contains(url, "://") {
		url = strings.TrimSpace(ts.ReadFile(url))
	}
	s, err := store.Open(t.Context(), url)
	ts.Check(err)
	stuck(t, s, args[1])
	ts.Defer(func() { _ = s.Close() })
}

func scriptHolds(ts *testscript.TestScript, _ bool, args []string) {
	c, err := net.Dial("tcp", args[0])
	ts.Check(err)
	ts.Defer(func() { _ = c.Close() })
	_, err = c.Write(wire.AppendRequest([]byte(wire.Preface), &wire.Request{Op: wire.OpHello}))
	ts.Check(err)
	_, err = io.ReadFull(c, make([]byte, wire.HeaderLen))
	ts.Check(err)
}

func scriptHTTP(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: http CODE URL [TEXT…]")
	}
	client, last := http.Client{Timeout: limit}, ""
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		rep, err := client.Get(args[1])
		if last = fmt.Sprint(err); err != nil { // it may not listen yet
			continue
		}
		body, err := io.ReadAll(rep.Body)
		ts.Check(errors.Join(err, rep.Body.Close()))
		last = rep.Status + " " + string(body)
		if strings.HasPrefix(last, args[0]) && !slices.ContainsFunc(args[2:], func(text string) bool { return !strings.Contains(last, text) }) {
			return
		}
	}
	ts.Fatalf("not %q but %s", args, last)
}

func scriptTensors(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: tensors FILE [@KEY=VALUE…] [NAME=DTYPE[DIM,…][:BYTE]…]")
	}
	all, metadata := tensors{}, map[string]string(nil)
	for _, arg := range args[1:] {
		at := strings.LastIndexByte(arg, '=')
		name, kind := arg[:at], arg[at+1:]
		if key, ok := strings.CutPrefix(name, "@"); ok {
			if metadata == nil {
				metadata = map[string]string{}
			}
			metadata[key] = kind
			continue
		}
		kind, fill, _ := strings.Cut(kind, ":")
		kind, dims, _ := strings.Cut(strings.TrimSuffix(kind, "]"), "[")
		var shape []int
		for dim := range strings.FieldsFuncSeq(dims, func(r rune) bool { return r == ',' }) {
			n, err := strconv.Atoi(dim)
			ts.Check(err)
			shape = append(shape, n)
		}
		dt, err := tensor.ParseDType(kind)
		ts.Check(err)
		x := tensor.New(dt, shape...)
		value, _ := strconv.ParseUint(fill, 10, 8)
		for i := range x.Data {
			x.Data[i] = byte(value)
		}
		all[name] = x
	}
	ts.Check(safetensors.WriteFile(ts.MkAbs(args[0]), all, metadata))
}
