package main

import (
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	if isChild() { // the benchmarks start this binary again as a child
		os.Exit(runChild())
	}
	os.Exit(m.Run())
}

func TestWrongUse(t *testing.T) {
	for _, line := range []string{
		"", "nothing", "kv -nothing", "kv -ops take", "groups -n 1",
		"gather -n 1", "gather -kib 0", "gather -rounds 0", "gather -ways (", "gather -ways nothing -mpi=false -python true",
		"all-reduce -n 1", "all-reduce -bytes 5", "all-reduce -bytes x", "all-reduce -rounds 0",
		"all-reduce -ways (", "all-reduce -ways nothing -mpi=false",
	} {
		var out, errs strings.Builder
		if run(t.Context(), strings.Fields(line), &out, &errs) == 0 {
			t.Errorf("%s: no error", line)
		}
	}
}
