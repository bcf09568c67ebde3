package dataparallel

// Descending is the default of Options.Order.
var Descending = descending
