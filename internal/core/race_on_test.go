//go:build race

package core_test

const underRace = true
