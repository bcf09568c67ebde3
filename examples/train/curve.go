package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// curve is the file of the loss by step, from step 1; nil: there is none.
type curve struct {
	file *os.File
	buf  *bufio.Writer
}

// newCurve creates a file; "" means none.
func newCurve(file string) (*curve, error) {
	if file == "" {
		return &curve{}, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	c := &curve{file: f, buf: bufio.NewWriter(f)}
	_, _ = fmt.Fprintln(c.buf, "step,loss") // Flush returns the error
	return c, nil
}

// add appends the loss of the next step. The file contains enough digits to restore the same bits.
func (c *curve) add(step int, loss float64) error {
	if c.file == nil {
		return nil
	}
	_, err := fmt.Fprintf(c.buf, "%d,%s\n", step, strconv.FormatFloat(loss, 'g', -1, 64))
	return err
}

// close closes the file. Further calls do nothing.
func (c *curve) close() error {
	if c.file == nil {
		return nil
	}
	err := errors.Join(c.buf.Flush(), c.file.Close())
	c.file = nil
	return err
}
