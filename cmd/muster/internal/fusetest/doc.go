// Package fusetest mounts a directory that behaves like one on a network file system: the client
// caches attributes and entries for a time, including that a name does not exist, while another
// client changes the directory. It is for tests of nfsws and doctor. It is in this module so that
// the module of the library does not require a FUSE library.
package fusetest
