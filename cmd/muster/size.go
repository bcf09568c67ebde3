package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// size is the value of a flag for a number of bytes: 512, 64KiB, 4GiB.
type size int64

var units = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// Set implements pflag.Value.
func (s *size) Set(text string) error {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 || n > 1<<62/u.bytes {
			break
		}
		*s = size(n * u.bytes)
		return nil
	}
	return fmt.Errorf("not a size, such as 512, 64KiB or 4GiB")
}

// String implements pflag.Value.
func (s *size) String() string {
	for _, u := range units {
		if n := int64(*s); n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return "0"
}

// Type implements pflag.Value.
func (s *size) Type() string { return "size" }

// sizes is the value of a flag for several sizes, separated by commas.
type sizes []size

// Set implements pflag.Value.
func (s *sizes) Set(text string) error {
	*s = nil
	for one := range strings.SplitSeq(text, ",") {
		var n size
		if err := n.Set(one); err != nil {
			return err
		}
		if slices.Contains(*s, n) {
			return fmt.Errorf("%s is there twice", one)
		}
		*s = append(*s, n)
	}
	return nil
}

// String implements pflag.Value.
func (s *sizes) String() string {
	var all []string
	for i := range *s {
		all = append(all, (*s)[i].String())
	}
	return strings.Join(all, ",")
}

// Type implements pflag.Value.
func (s *sizes) Type() string { return "sizes" }
