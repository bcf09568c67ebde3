package launch_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/muster-pg/muster/internal/launch"
	"github.com/muster-pg/muster/internal/testcluster"
)

// The environment of the test binary when it is a rank, or a rank's child.
const (
	modeVar = "LAUNCH_TEST_MODE"
	waitVar = "LAUNCH_TEST_WAIT" // set if the test waits for the end of readyFile
)

const readyFile = 3

func TestMain(m *testing.M) {
	mode := os.Getenv(modeVar)
	if mode == "" {
		testcluster.Leaks(m)
	}
	name, arg, _ := strings.Cut(mode, ":")
	act, ok := acts[name]
	if !ok {
		fmt.Println("no such mode:", mode)
		os.Exit(99)
	}
	act(arg)
}

// acts are what ranks do.
var acts = map[string]func(arg string){
	"exit":       func(code string) { os.Exit(number(code)) },
	"block":      func(string) { ready(); block() },
	"stubborn":   func(string) { signal.Ignore(syscall.SIGTERM); ready(); block() },
	"polite":     polite,
	"count":      count,
	"parent":     parent,
	"family":     func(child string) { fmt.Println("child", begin(child, false)); block() },
	"leave":      func(child string) { fmt.Println("child", begin(child, false)) },
	"escape":     func(child string) { fmt.Println("child", begin(child, true)) },
	"parentpipe": func(child string) { launch.ExitWithParent(); fmt.Println("child", begin(child, false)); block() },
	"free":       func(string) { launch.ExitWithParent(); stdin("") },
}

// block waits for the end that others bring.
func block() { <-time.After(time.Hour) }

// ready reports to the test and to the parent that this process is set up.
func ready() {
	fmt.Println("ready", os.Getpid())
	if os.Getenv(waitVar) != "" {
		_ = os.NewFile(readyFile, "ready").Close()
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// polite takes a moment to end, and says that it could.
func polite(string) {
	c := make(chan os.Signal, 2)
	signal.Notify(c, syscall.SIGTERM, syscall.SIGUSR1)
	ready()
	fmt.Println("received", <-c)
}

func count(n string) {
	for i := range number(n) {
		fmt.Println("out", i)
		fmt.Fprintln(os.Stderr, "err", i)
	}
	fmt.Print("no newline")
}

func stdin(string) {
	b, err := io.ReadAll(os.Stdin)
	fmt.Println("stdin", len(b), err)
}

// begin starts a child of this rank in its group, or in a separate session, and
// returns when it is ready: a rank that ends at once would take it along before that.
func begin(mode string, escape bool) (pid int) {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(self())
	cmd.Env = append(os.Environ(), modeVar+"="+mode, waitVar+"=yes")
	cmd.Stdout = os.Stdout // the rank's pipe stays open as long as the child lives
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: escape}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	w.Close()
	_, _ = io.Copy(io.Discard, r)
	return cmd.Process.Pid
}

func self() string {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return exe
}

// parent is a launcher that a test can kill.
func parent(mode string) {
	s := spec(3, mode)
	s.Output = os.Stdout
	job, err := launch.Start(context.Background(), s)
	if err != nil {
		panic(err)
	}
	_ = job.Wait()
}

// spec starts the test binary n times in a mode, and collects what it says. The race detector would have each wait
// for a second before it exits.
func spec(n int, mode string) launch.Spec {
	return launch.Spec{N: n, Path: self(), Output: new(sayings), Env: func(int) []string {
		return []string{modeVar + "=" + mode, "GORACE=atexit_sleep_ms=0"}
	}}
}
