// Package archtest holds the architecture as data and tests the tree against it: which
// package may import which, and a few rules of form that no linter knows.
//
// A new package gets a line in imports_test.go; its tests name what a package breaks. They
// read every Go file, also those that this platform does not build, and nothing outside the
// tree, so that go test may cache them.
package archtest
