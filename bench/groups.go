package main

import (
	"context"
	"errors"
	"io"
)

func runGroups(ctx context.Context, args []string, out io.Writer) error { return errors.New("not yet") }
func beRank(args []string) error                                        { return errors.New("not yet") }
