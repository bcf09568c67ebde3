package main

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// curve is the loss by step, from step 1, and the file that it is written to, if there is one.
type curve struct {
	name   string
	losses []float64
	file   *os.File
	buf    *bufio.Writer
}

// newCurve returns a curve that is also written to file; "" means no file.
func newCurve(file string) (*curve, error) {
	if file == "" {
		return &curve{name: "this run"}, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	c := &curve{name: nameOf(file), file: f, buf: bufio.NewWriter(f)}
	_, _ = fmt.Fprintln(c.buf, "step,loss") // Flush returns the error
	return c, nil
}

func nameOf(file string) string {
	base := filepath.Base(file)
	return strings.TrimSuffix(base, filepath.Ext(base))
}

// add appends the loss of the next step. The file contains enough digits to restore the same bits.
func (c *curve) add(step int, loss float64) error {
	c.losses = append(c.losses, loss)
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

// readCurve reads the file of a curve.
func readCurve(file string) (*curve, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	c := &curve{name: nameOf(file)}
	rows := csv.NewReader(f)
	rows.FieldsPerRecord = 2
	if head, err := rows.Read(); err != nil || head[0] != "step" || head[1] != "loss" {
		return nil, fmt.Errorf("%s is no loss curve: its first line is not step,loss", file)
	}
	for {
		row, err := rows.Read()
		switch {
		case errors.Is(err, io.EOF) && len(c.losses) == 0:
			return nil, fmt.Errorf("%s has no steps", file)
		case errors.Is(err, io.EOF):
			return c, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		loss, err := strconv.ParseFloat(row[1], 64)
		if err != nil || math.IsNaN(loss) || math.IsInf(loss, 0) || row[0] != strconv.Itoa(len(c.losses)+1) {
			return nil, fmt.Errorf("%s: %q is not step %d and its loss", file, strings.Join(row, ","), len(c.losses)+1)
		}
		c.losses = append(c.losses, loss)
	}
}
