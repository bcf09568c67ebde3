package main

import (
	"math"
	"math/rand/v2"

	"github.com/muster-pg/muster/tensor"
)

const hidden = 64 // units of the hidden layer

// layers are the weights of a perceptron with one hidden layer, or their gradient. All of them are
// parts of one slice.
type layers struct {
	all    []float32
	w1, b1 []float32 // hidden×pixels, hidden
	w2, b2 []float32 // classes×hidden, classes
}

func newLayers(hidden int) layers {
	l := layers{all: make([]float32, hidden*(pixels+1)+classes*(hidden+1))}
	rest := l.all
	take := func(n int) (part []float32) {
		part, rest = rest[:n:n], rest[n:]
		return part
	}
	l.w1, l.b1 = take(hidden*pixels), take(hidden)
	l.w2, l.b2 = take(classes*hidden), take(classes)
	return l
}

// tensors returns the layers by name, in the same memory.
func (l layers) tensors() map[string]*tensor.Tensor {
	hidden := len(l.b1)
	return map[string]*tensor.Tensor{
		"hidden.weight": tensor.From(l.w1, hidden, pixels),
		"hidden.bias":   tensor.From(l.b1, hidden),
		"output.weight": tensor.From(l.w2, classes, hidden),
		"output.bias":   tensor.From(l.b2, classes),
	}
}

// draw initializes the weights with uniform random numbers within the bounds of He et al. (2015),
// and leaves the biases at 0.
func (l layers) draw(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	fill := func(w []float32, in int) {
		bound := math.Sqrt(6 / float64(in))
		for i := range w {
			w[i] = float32(bound * (2*r.Float64() - 1))
		}
	}
	fill(l.w1, pixels)
	fill(l.w2, len(l.b1))
}

// network evaluates the model. It has buffers for the values between the layers.
type network struct {
	layers
	hidden, dHidden []float32
}

func newNetwork(hidden int) *network {
	return &network{layers: newLayers(hidden), hidden: make([]float32, hidden), dHidden: make([]float32, hidden)}
}

// scores computes the score (logit) of each class.
func (n *network) scores(image *[pixels]float32) (z [classes]float32) {
	for j := range n.hidden {
		n.hidden[j] = max(0, n.b1[j]+dot(n.w1[j*pixels:][:pixels], image[:]))
	}
	for k := range z {
		z[k] = n.b2[k] + dot(n.w2[k*len(n.hidden):][:len(n.hidden)], n.hidden)
	}
	return z
}

// backward adds the gradient of the loss of one example to grad, and returns the loss: the cross
// entropy, in nats.
func (n *network) backward(grad layers, e *example) float64 {
	p, loss := softmax(n.scores(&e.image), e.label)
	clear(n.dHidden)
	for k, d := range p { // p becomes the gradient of the scores
		if k == e.label {
			d--
		}
		row := k * len(n.hidden)
		grad.b2[k] += d
		addScaled(grad.w2[row:][:len(n.hidden)], d, n.hidden)
		addScaled(n.dHidden, d, n.w2[row:][:len(n.hidden)])
	}
	for j, d := range n.dHidden {
		if n.hidden[j] > 0 {
			grad.b1[j] += d
			addScaled(grad.w1[j*pixels:][:pixels], d, e.image[:])
		}
	}
	return loss
}

// right counts the examples that the model classifies correctly.
func (n *network) right(examples []example) (count int) {
	for i := range examples {
		z := n.scores(&examples[i].image)
		best := 0
		for k := range z {
			if z[k] > z[best] {
				best = k
			}
		}
		if best == examples[i].label {
			count++
		}
	}
	return count
}

// softmax turns scores into probabilities, and returns the cross entropy with label.
func softmax(z [classes]float32, label int) (p [classes]float32, loss float64) {
	top := z[0]
	for _, v := range z {
		top = max(top, v)
	}
	sum := 0.0
	for k, v := range z {
		e := math.Exp(float64(v - top))
		p[k] = float32(e)
		sum += e
	}
	for k := range p {
		p[k] = float32(float64(p[k]) / sum)
	}
	return p, math.Log(sum) - float64(z[label]-top)
}

func dot(a, b []float32) (sum float32) {
	b = b[:len(a)]
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func addScaled(dst []float32, f float32, x []float32) {
	x = x[:len(dst)]
	for i := range dst {
		dst[i] += f * x[i]
	}
}

const momentum = 0.9

// sgd is stochastic gradient descent with momentum.
type sgd struct{ velocity []float32 }

// update takes one step of gradient descent. Each product is rounded separately. Otherwise Go may
// fuse it with the sum on some processors and not on others, and replicas on both would diverge.
func (s *sgd) update(w, grad []float32, rate float32) {
	for i, g := range grad {
		v := float32(momentum*s.velocity[i]) + g
		s.velocity[i] = v
		w[i] -= float32(rate * v)
	}
}
