// Package fusetest mounts a directory as a client of a network file system sees it: what it was told once, also that a
// name does not exist, it believes for a time, while another client changes the directory. It is for tests, and a
// package of its own so that only tests need a FUSE library.
package fusetest
