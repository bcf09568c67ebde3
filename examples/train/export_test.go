package main

var (
	Run    = run
	Digits = digits
)

// Count returns how many digits are for training and how many held out, and how many there are of
// each label.
func Count() (train, heldOut int, labels [classes]int, err error) {
	d, err := load()
	for _, part := range [][]example{d.train, d.heldOut} {
		for _, e := range part {
			labels[e.label]++
		}
	}
	return len(d.train), len(d.heldOut), labels, err
}

// Gradient returns the gradient of the loss of an example of the built-in data, and a function of
// the weights that computes the loss.
func Gradient(nth int) (weights, grad []float32, loss func() float64, err error) {
	d, err := load()
	if err != nil {
		return nil, nil, nil, err
	}
	n, g := newNetwork(hidden), newLayers(hidden)
	n.draw(seed)
	n.backward(g, &d.train[nth])
	return n.all, g.all, func() float64 { return n.backward(newLayers(hidden), &d.train[nth]) }, nil
}

// ExactMean returns the mean of the gradients and losses of all ranks.
func ExactMean(ranks [][][]float32, losses [][]float64) (grad []float32, loss float64, err error) {
	var total exactSum
	count := 0
	for rank, grads := range ranks {
		for i, g := range grads {
			if total == nil {
				total = make(exactSum, len(g)+1)
				grad = make([]float32, len(g))
			}
			count++
			if err := total.add(g, losses[rank][i]); err != nil {
				return nil, 0, err
			}
		}
	}
	return grad, total.mean(grad, count), nil
}

// Batches returns the first batches of examples.
func Batches(n, size, count int) (all [][]int) {
	o := &options{batch: size}
	for step := range count {
		all = append(all, o.examples(step, n))
	}
	return all
}
