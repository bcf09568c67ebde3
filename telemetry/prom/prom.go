// Package prom counts the events of package trace as Prometheus metrics.
//
//	sink, err := prom.New(prometheus.DefaultRegisterer, nil)
//	cfg.Trace = sink
//
// The metrics are muster_operations_total, by op and code, and the histogram of durations
// muster_operation_seconds, by op. muster_waited_seconds_total is the time spent waiting for other
// ranks, and muster_bytes_total the number of bytes moved. No label has a group, a rank or a key,
// since their number is not bounded.
package prom

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/muster-pg/muster/trace"
)

// Options are the options of New. Zero fields have defaults.
type Options struct {
	// of the histogram, in seconds; default 1 µs to 67 s, each 4 times the previous one
	Buckets []float64
	Labels  prometheus.Labels // constant labels, such as job or host
}

// Sink is a trace.Sink. It is safe for concurrent use.
type Sink struct {
	count  *prometheus.CounterVec
	took   *prometheus.HistogramVec
	waited *prometheus.CounterVec
	bytes  *prometheus.CounterVec
}

var _ trace.Sink = (*Sink)(nil)

// New registers the metrics with r, unless r is nil: a Sink is also a prometheus.Collector. If
// metrics of the same names and labels are already registered, the Sink uses them: several sinks
// may share them.
func New(r prometheus.Registerer, o *Options) (*Sink, error) {
	if o == nil {
		o = &Options{}
	}
	buckets := o.Buckets
	if buckets == nil {
		buckets = prometheus.ExponentialBuckets(1e-6, 4, 14)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "muster", Name: name, Help: help, ConstLabels: o.Labels}, labels)
	}
	s := &Sink{
		count: counter("operations_total", "Operations that have ended, by op, and by code: ok, or error.", "op", "code"),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "muster", Name: "operation_seconds", Help: "How long operations took.", ConstLabels: o.Labels, Buckets: buckets,
		}, []string{"op"}),
		waited: counter("waited_seconds_total", "How long operations waited for other ranks.", "op"),
		bytes:  counter("bytes_total", "Bytes that operations moved.", "op"),
	}
	if r == nil {
		return s, nil
	}
	err := errors.Join(register(r, &s.count), register(r, &s.took), register(r, &s.waited), register(r, &s.bytes))
	if err != nil {
		return nil, fmt.Errorf("prom: %w", err)
	}
	return s, nil
}

// register registers *c, or sets *c to the collector that is already registered.
func register[C prometheus.Collector](r prometheus.Registerer, c *C) error {
	err := r.Register(*c)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := there.ExistingCollector.(C); ok {
			*c = same
			return nil
		}
	}
	return err
}

// Record implements trace.Sink.
func (s *Sink) Record(_ context.Context, e trace.Event) {
	code := "ok"
	if e.Err != nil {
		code = "error"
	}
	s.count.WithLabelValues(e.Op, code).Inc()
	s.took.WithLabelValues(e.Op).Observe(e.Duration().Seconds())
	if e.Waited > 0 {
		s.waited.WithLabelValues(e.Op).Add(e.Waited.Seconds())
	}
	if e.Bytes > 0 {
		s.bytes.WithLabelValues(e.Op).Add(float64(e.Bytes))
	}
}

// Describe implements prometheus.Collector.
func (s *Sink) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.all() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (s *Sink) Collect(ch chan<- prometheus.Metric) {
	for _, c := range s.all() {
		c.Collect(ch)
	}
}

func (s *Sink) all() []prometheus.Collector {
	return []prometheus.Collector{s.count, s.took, s.waited, s.bytes}
}
