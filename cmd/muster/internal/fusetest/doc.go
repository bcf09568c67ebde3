// Package fusetest mounts a directory as a client of a network file system sees it: for a time the
// client believes what it was told once, also that a name does not exist, while another client
// changes the directory. It is for tests of nfsws and doctor, and lives in this module so that the
// library's own does not require a FUSE library.
package fusetest
