package main

var Run = run

// Gradient returns the gradient of the loss of an example of the built-in data, and a function of
// the weights that computes the loss.
func Gradient(nth int) (weights, grad []float32, loss func() float64, err error) {
	d, err := load()
	if err != nil {
		return nil, nil, nil, err
	}
	n, g := newModel(), newModel()
	n.draw(seed)
	n.backward(g, &d.train[nth])
	return n.all, g.all, func() float64 { return n.backward(newModel(), &d.train[nth]) }, nil
}
