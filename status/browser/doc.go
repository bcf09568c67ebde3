// Package browser tests the page of package status in a real browser. It is a separate module
// because of the dependencies that this takes.
package browser
