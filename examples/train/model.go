package main

import (
	"math"
	"math/rand/v2"

	"github.com/muster-pg/muster/tensor"
)

// model is a linear classifier (softmax regression), or its gradient: the weights of each class, and a
// bias. Both are parts of one slice.
type model struct {
	all  []float32
	w, b []float32 // classes×pixels, classes
}

func newModel() model {
	all := make([]float32, classes*(pixels+1))
	return model{all: all, w: all[:classes*pixels], b: all[classes*pixels:]}
}

// tensors returns the layers by name, in the same memory.
func (m model) tensors() map[string]*tensor.Tensor {
	return map[string]*tensor.Tensor{"weight": tensor.From(m.w, classes, pixels), "bias": tensor.From(m.b, classes)}
}

// draw initializes the weights with small uniform random numbers, and leaves the biases at 0.
func (m model) draw(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range m.w {
		m.w[i] = float32(0.1 * (2*r.Float64() - 1))
	}
}

// scores computes the score (logit) of each class.
func (m model) scores(image *[pixels]float32) (z [classes]float32) {
	for k := range z {
		z[k] = m.b[k] + dot(m.w[k*pixels:][:pixels], image[:])
	}
	return z
}

// backward adds the gradient of the loss of one example to grad, and returns the loss: the cross
// entropy, in nats.
func (m model) backward(grad model, e *example) float64 {
	p, loss := softmax(m.scores(&e.image), e.label)
	for k, d := range p { // p becomes the gradient of the scores
		if k == e.label {
			d--
		}
		grad.b[k] += d
		addScaled(grad.w[k*pixels:][:pixels], d, e.image[:])
	}
	return loss
}

// right counts the examples that the model classifies correctly.
func (m model) right(examples []example) (count int) {
	for i := range examples {
		z := m.scores(&examples[i].image)
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
