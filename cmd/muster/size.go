package main

import (
	"fmt"
	"strconv"
	"strings"
)

// size is a flag for a number of bytes: 512, 64KiB, 4GiB.
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
	return fmt.Errorf("it is no size such as 512, 64KiB or 4GiB")
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
