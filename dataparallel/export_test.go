package dataparallel

// DiffersFromNothing compares the claim of rank 1 with one of rank 0 that names no tensors at all.
func DiffersFromNothing(tensors map[string]string) string {
	return (&claim{Tensors: tensors}).differs(1, &claim{})
}
