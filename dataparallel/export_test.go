package dataparallel

// DiffersFromNothing compares the claim of rank 1 with a claim of rank 0 that names no tensors.
func DiffersFromNothing(tensors map[string]string) string {
	return (&claim{Tensors: tensors}).differs(1, &claim{})
}

// Descending is the default of Options.Order.
var Descending = descending
