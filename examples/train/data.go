package main

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/csv"
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

// load reads the data set: gzipped CSV with a row for each image, its pixels and then its label.
func load() (dataset, error) {
	z, err := gzip.NewReader(bytes.NewReader(digits))
	if err != nil {
		return dataset{}, err
	}
	rows, err := csv.NewReader(z).ReadAll()
	if err != nil {
		return dataset{}, err
	}
	all := make([]example, len(rows))
	for n, row := range rows {
		for i, field := range row {
			v, err := strconv.Atoi(field)
			if err != nil {
				return dataset{}, err
			}
			if i < pixels {
				all[n].image[i] = float32(v) / ink
			} else {
				all[n].label = v
			}
		}
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
