// Package nfs tests package nfsws on a mounted directory that behaves like one on a network file
// system: the client caches attributes and entries for a time, including that a name does not
// exist, while another client changes the directory. The mount needs a FUSE library, which the
// library and the command do not.
package nfs
