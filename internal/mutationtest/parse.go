package mutationtest

import (
	"fmt"
	"strings"
)

// parse returns the mutants of text, which is that of mutantsFile: blocks with a blank line between them.
func parse(text string) (mutants []mutant, err error) {
	line := 1
	for block := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n\n") {
		m := mutant{line: line}
		for at := range strings.SplitSeq(block, "\n") {
			if err := m.add(at); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", mutantsFile, line, err)
			}
			line++
		}
		line++
		switch {
		case m.name == "": // a block of comments
			continue
		case m.file == "" || m.old == "" || m.old == m.new:
			return nil, fmt.Errorf("%s:%d: %q needs a file (--- FILE), and a text of it that it changes", mutantsFile, m.line, m.name)
		}
		m.old, m.new = strings.TrimSuffix(m.old, "\n"), strings.TrimSuffix(m.new, "\n")
		mutants = append(mutants, m)
	}
	return mutants, nil
}

// add adds a line of the mutant's block.
func (m *mutant) add(line string) error {
	file, isFile := strings.CutPrefix(line, "--- ")
	test, isTest := strings.CutPrefix(line, "test: ")
	switch {
	case m.file != "":
		return m.addText(line)
	case strings.HasPrefix(line, "#"):
	case m.name == "":
		m.name = line
	case isFile:
		m.file = file
	case isTest:
		m.test = test
	default:
		return fmt.Errorf("%q is no test, file or comment", line)
	}
	return nil
}

// addText adds a line of the patch.
func (m *mutant) addText(line string) error {
	text := line[1:] + "\n"
	switch line[0] {
	case ' ':
		m.old += text
		m.new += text
	case '-':
		m.old += text
	case '+':
		m.new += text
	default:
		return fmt.Errorf("%q begins with neither a space, - nor +", line)
	}
	return nil
}
