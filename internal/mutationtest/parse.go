package mutationtest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// parser reads the mutants of mutantsFile line by line.
type parser struct {
	mutants []mutant
	line    int // the number of the line that an error is about

	// What was read of the mutant that has not ended yet.
	m        mutant
	old, new []string
}

// parse returns the mutants of text, which is that of mutantsFile.
func parse(text string) ([]mutant, error) {
	var p parser
	for i, line := range strings.Split(text+"\n", "\n") { // the last line is blank, and ends the last mutant
		p.line = i + 1
		if err := p.add(line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", mutantsFile, p.line, err)
		}
	}
	if len(p.mutants) == 0 {
		return nil, fmt.Errorf("%s has no mutant", mutantsFile)
	}
	return p.mutants, nil
}

// add reads a line.
func (p *parser) add(line string) error {
	switch {
	case strings.TrimRightFunc(line, unicode.IsSpace) != line:
		return errors.New("white space at the end of the line, which editors remove")
	case line == "":
		return p.end()
	case p.m.file != "":
		return p.addText(line[0], line[1:])
	case line[0] == '#':
		return nil
	case p.m.name == "":
		return p.addName(line)
	default:
		return p.addHeader(line)
	}
}

// addName reads the first line of a mutant. A line of another kind shows that the name is missing.
func (p *parser) addName(line string) error {
	if strings.HasPrefix(line, "test: ") || strings.ContainsAny(line[:1], " -+") {
		return fmt.Errorf("a mutant begins with its name, not with %q", line)
	}
	p.m.name, p.m.line = line, p.line
	return nil
}

// addHeader reads a line between the name and the text.
func (p *parser) addHeader(line string) error {
	file, isFile := strings.CutPrefix(line, "--- ")
	test, isTest := strings.CutPrefix(line, "test: ")
	switch {
	case isFile:
		p.m.file = file
	case isTest && p.m.test == "":
		p.m.test = test
	default:
		return fmt.Errorf("unexpected line %q after the name of a mutant", line)
	}
	return nil
}

// addText reads a line of the text.
func (p *parser) addText(sign byte, line string) error {
	switch sign {
	case ' ':
		p.old = append(p.old, line)
		p.new = append(p.new, line)
	case '-':
		p.old = append(p.old, line)
	case '+':
		p.new = append(p.new, line)
	default:
		return fmt.Errorf("line of a patch begins with %q, not with a space, - or +", sign)
	}
	return nil
}

// end reads the end of a mutant, if one has begun.
func (p *parser) end() error {
	m := p.m
	if m.name == "" {
		return nil
	}
	p.line = m.line
	m.old, m.new = strings.Join(p.old, "\n"), strings.Join(p.new, "\n")
	switch {
	case m.file == "":
		return errors.New("a mutant without a file")
	case m.old == "":
		return errors.New("a mutant without text that the file has")
	case m.old == m.new:
		return errors.New("a mutant that changes nothing")
	case slices.ContainsFunc(p.mutants, func(earlier mutant) bool { return earlier.name == m.name }):
		return errors.New("a mutant with the name of an earlier one")
	}
	p.mutants = append(p.mutants, m)
	p.m, p.old, p.new = mutant{}, nil, nil
	return nil
}
