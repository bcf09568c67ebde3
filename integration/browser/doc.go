// Package browser tests the page of package status in a real browser. The module integration has it
// because of the dependencies that this takes.
package browser
