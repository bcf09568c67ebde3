// Package covered has a branch for each process of its test.
package covered

func branch(rank int) string {
	switch rank {
	case 0:
		return "zero"
	case 1:
		return "one"
	}
	return "many"
}
