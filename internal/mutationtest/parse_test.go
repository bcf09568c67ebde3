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
		{name: "a rule", line: 2, test: "^TestRule$", file: "a.go", old: "\tif a {\n\t\tb()\n\t\tc()", new: "\tif a {\n\t\td()"},
		{name: "another rule", line: 11, file: "../b.go", old: "# x"},
		{name: "a third", line: 16, file: "b.go", old: "y"},
	}
	got, err := parse(text)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("read %+v, %v, want %+v", got, err, want)
	}
}

func TestParseRefuses(t *testing.T) {
	const good = "a rule\n--- a.go\n-x\n+y\n"
	for _, tc := range []struct{ text, want string }{
		{"", "mutants.txt has no mutant"},
		{"# a rule\n", "mutants.txt has no mutant"},
		{"a rule\n\n" + good, ":1: a mutant without a file"},
		{"a rule\n", ":1: a mutant without a file"},
		{"test: ^TestRule$\n--- a.go\n-x\n+y\n", `:1: a mutant begins with its name, not with "test: ^TestRule$"`},
		{"--- a.go\n-x\n+y\n", `:1: a mutant begins with its name, not with "--- a.go"`},
		{"\n" + good + "\n" + good, ":7: a mutant with the name of an earlier one"},
		{"a rule\n--- a.go\n", ":1: a mutant without text that the file has"},
		{"a rule\n--- a.go\n+y\n", ":1: a mutant without text that the file has"},
		{"a rule\n--- a.go\n x\n", ":1: a mutant that changes nothing"},
		{"a rule\n--- a.go\n-x\n+x\n", ":1: a mutant that changes nothing"},
		{"a rule\nits end\n--- a.go\n-x\n+y\n", `:2: unexpected line "its end"`},
		{"a rule\n-x\n+y\n", `:2: unexpected line "-x"`},
		{"a rule\n---\n-x\n", `:2: unexpected line "---"`},
		{"a rule\ntest: ^TestA$\ntest: ^TestB$\n", `:3: unexpected line "test: ^TestB$"`},
		{"a rule\n--- a.go\n-x\ny\n", ":4: line of a patch begins with 'y'"},
		{"a rule\n--- a.go\n-x\n# why\n", ":4: line of a patch begins with '#'"},
		{"a rule\n--- a.go\n-x \n", ":3: white space at the end"},
		{"a rule\r\n", ":1: white space at the end"},
		{"a rule\n--- a.go\n-x\n+z\n\n+y\n", `:6: a mutant begins with its name, not with "+y"`},
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
