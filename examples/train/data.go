package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
)

const (
	pixels  = 8 * 8
	ink     = 16 // the maximum value of a pixel
	classes = 10
)

// digits is the embedded data set; data/README.md describes its source.
//
//go:embed data/digits.csv.gz
var digits []byte

// example is an image and its label.
type example struct {
	image [pixels]float32 // 0 to 1, row by row
	label int
}

// dataset contains the examples for training, and those held out for evaluation.
type dataset struct{ train, heldOut []example }

// load reads a data set: gzipped CSV with a row for each image, its pixels and then its label. If
// file is "", it is the embedded data set.
func load(file string) (dataset, error) {
	raw, name := digits, "the built-in data"
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return dataset{}, fmt.Errorf("no data: %w", err)
		}
		raw, name = b, file
	}
	all, err := parse(raw)
	if err != nil {
		return dataset{}, fmt.Errorf("data in %s: %w", name, err)
	}
	return split(all), nil
}

// split holds out every fifth example. The file does not say who wrote which digit, so both parts
// contain digits by the same people.
func split(all []example) (d dataset) {
	for i, e := range all {
		if i%5 == 4 {
			d.heldOut = append(d.heldOut, e)
		} else {
			d.train = append(d.train, e)
		}
	}
	return d
}

func parse(raw []byte) ([]example, error) {
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("not a gzipped CSV file: %w", err)
	}
	rows := csv.NewReader(z)
	rows.FieldsPerRecord = pixels + 1
	rows.ReuseRecord = true
	var all []example
	for {
		row, err := rows.Read()
		switch {
		case errors.Is(err, io.EOF) && len(all) < 2*classes:
			return nil, fmt.Errorf("%d rows are too few to learn from", len(all))
		case errors.Is(err, io.EOF):
			return all, nil
		case errors.Is(err, csv.ErrFieldCount):
			return nil, fmt.Errorf("row %d has %d fields, and should have %d pixels and a label", len(all)+1, len(row), pixels)
		case err != nil:
			return nil, err
		}
		e, err := parseRow(row)
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", len(all)+1, err)
		}
		all = append(all, e)
	}
}

func parseRow(row []string) (e example, err error) {
	for i := range e.image {
		v, err := number(row[i], ink)
		if err != nil {
			return e, fmt.Errorf("pixel %d: %w", i, err)
		}
		e.image[i] = float32(v) / ink
	}
	if e.label, err = number(row[pixels], classes-1); err != nil {
		return e, fmt.Errorf("label: %w", err)
	}
	return e, nil
}

func number(s string, most int) (int, error) {
	v, err := strconv.Atoi(s)
	if err != nil || v < 0 || v > most {
		return 0, fmt.Errorf("%q is no number from 0 to %d", s, most)
	}
	return v, nil
}
