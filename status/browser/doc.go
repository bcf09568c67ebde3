// Package browser has the tests of the page of package status in a real browser. It is a module of its own, for what drives that.
package browser
