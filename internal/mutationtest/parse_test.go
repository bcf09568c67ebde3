package mutationtest

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const text = `# a comment of the file
a rule
# a comment of the mutant
test: ^TestRule$
--- a.go
 	if a {
-		b()
-		c()
+		d()

another rule
--- ../b.go
-# x
+

a third
--- b.go
-y`
	want := []mutant{
		{name: "a rule", line: 1, test: "^TestRule$", file: "a.go", old: "\tif a {\n\t\tb()\n\t\tc()", new: "\tif a {\n\t\td()"},
		{name: "another rule", line: 11, file: "../b.go", old: "# x"},
		{name: "a third", line: 16, file: "b.go", old: "y"},
	}
	got, err := parse(text)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("read %+v, %v, want %+v", got, err, want)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"a rule\n", `:1: "a rule" needs a file`},
		{"# why\n\na rule\n\nanother\n--- a.go\n-x\n", `:3: "a rule" needs a file`},
		{"a rule\n--- a.go\n+y\n", `:1: "a rule" needs a file (--- FILE), and a text of it that it changes`},
		{"a rule\n--- a.go\n x\n", ":1:"},
		{"a rule\n--- a.go\n-x\n+x\n", ":1:"},
		{"a rule\nits end\n--- a.go\n-x\n+y\n", `:2: "its end" is no test`},
		{"--- a.go\n-x\n+y\n", `:2: "-x" is no test`},
		{"a rule\n--- a.go\n-x\ny\n", `:4: "y" begins with neither`},
		{"a rule\n--- a.go\n-x\n# why\n", `:4: "# why" begins with neither`},
	} {
		if _, err := parse(tc.text); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.text, err, tc.want)
		}
	}
}

func TestApply(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.go")
	if err := os.WriteFile(file, []byte("one\ntwo\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ file, old, want string }{
		{file, "one\ntwo", ""},
		{file, "two", "mutants.txt:12: " + file + " has this text 2 times, not once"},
		{file, "four", "mutants.txt:12: " + file + " has this text 0 times, not once"},
		{file + "x", "one", "mutants.txt:12: open "},
	} {
		m := mutant{line: 12, file: tc.file, old: tc.old, new: "1"}
		switch changed, err := m.apply(); {
		case tc.want == "":
			if err != nil || changed != "1\ntwo\nthree\n" {
				t.Errorf("%q becomes %q, %v", tc.old, changed, err)
			}
		case err == nil || !strings.Contains(err.Error(), tc.want):
			t.Errorf("%q: %v, want %q", tc.old, err, tc.want)
		}
	}
}
