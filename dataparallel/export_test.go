package dataparallel

// Descending is the order of names.
var Descending = descending
