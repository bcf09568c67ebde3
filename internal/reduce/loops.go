package reduce

import "github.com/muster-pg/muster/tensor"

// The loops over elements. Each combines as many sources at once as the registers and memory
// streams allow: a source that is combined separately costs another pass over dst. They read an
// element of all sources before they write it, so dst may be one of the sources.

func combine2[T tensor.Number](op Op, dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	switch op {
	case Sum:
		for i := range dst {
			dst[i] = a[i] + b[i]
		}
	case Product:
		for i := range dst {
			dst[i] = a[i] * b[i]
		}
	case Min:
		for i := range dst {
			dst[i] = min(a[i], b[i])
		}
	case Max:
		for i := range dst {
			dst[i] = max(a[i], b[i])
		}
	}
}

func combine3[T tensor.Number](op Op, dst, a, b, c []T) {
	a, b, c = a[:len(dst)], b[:len(dst)], c[:len(dst)]
	switch op {
	case Sum:
		for i := range dst {
			dst[i] = a[i] + b[i] + c[i]
		}
	case Product:
		for i := range dst {
			dst[i] = a[i] * b[i] * c[i]
		}
	case Min:
		for i := range dst {
			dst[i] = min(a[i], b[i], c[i])
		}
	case Max:
		for i := range dst {
			dst[i] = max(a[i], b[i], c[i])
		}
	}
}

func combine4[T tensor.Number](op Op, dst, a, b, c, d []T) {
	a, b, c, d = a[:len(dst)], b[:len(dst)], c[:len(dst)], d[:len(dst)]
	switch op {
	case Sum:
		for i := range dst {
			dst[i] = a[i] + b[i] + c[i] + d[i]
		}
	case Product:
		for i := range dst {
			dst[i] = a[i] * b[i] * c[i] * d[i]
		}
	case Min:
		for i := range dst {
			dst[i] = min(a[i], b[i], c[i], d[i])
		}
	case Max:
		for i := range dst {
			dst[i] = max(a[i], b[i], c[i], d[i])
		}
	}
}
