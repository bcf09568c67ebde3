//go:build !linux

package link_test

const hasUnix = false
