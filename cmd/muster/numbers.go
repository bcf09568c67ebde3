package main

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/muster-pg/muster/trace/prom"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	promModel "github.com/prometheus/common/model"
)

// What ranks of bench and gather do is counted by themselves, and told by their launcher: one address has all of it.

// countHere counts what is traced in this rank, and reports it each time that every has passed, until stop, and then once more.
func countHere(every time.Duration, say func(text string) error) (sink *prom.Sink, stop func(), err error) {
	r := prometheus.NewRegistry()
	if sink, err = prom.New(r, nil); err != nil {
		return nil, nil, err
	}
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for more := true; more; {
			select {
			case <-tick.C:
			case <-over:
				more = false
			}
			if text, err := exposition(r); err != nil || say(text) != nil {
				return // nobody hears it
			}
		}
	}()
	return sink, func() { close(over); <-done }, nil
}

// exposition is what r has, as text.
func exposition(r prometheus.Gatherer) (string, error) {
	families, err := r.Gather()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			return "", err
		}
	}
	return b.String(), nil
}

// rankNumbers has what ranks have reported last, each metric with its rank. It is a prometheus.Collector. A nil one takes nothing.
type rankNumbers struct {
	mu sync.Mutex // protects of
	of map[int]map[string]*dto.MetricFamily
}

// take keeps a report. What cannot be read is left out: the next one may be better.
func (n *rankNumbers) take(rank int, text string) {
	parser := expfmt.NewTextParser(promModel.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if n == nil || err != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[int]map[string]*dto.MetricFamily{}
	}
	n.of[rank] = families
}

// Describe implements prometheus.Collector: what there will be is not known yet.
func (n *rankNumbers) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (n *rankNumbers) Collect(ch chan<- prometheus.Metric) {
	n.mu.Lock()
	all := maps.Clone(n.of)
	n.mu.Unlock()
	for rank, families := range all {
		for name, f := range families {
			for _, m := range f.Metric {
				ch <- ranked(rank, name, f.GetHelp(), m)
			}
		}
	}
}

// rankMetric is a metric of a rank.
type rankMetric struct {
	desc *prometheus.Desc
	m    *dto.Metric
}

func ranked(rank int, name, help string, m *dto.Metric) rankMetric {
	label, value := "rank", strconv.Itoa(rank)
	labels := append(slices.Clone(m.Label), &dto.LabelPair{Name: &label, Value: &value})
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
	names := make([]string, len(labels))
	for i, l := range labels {
		names[i] = l.GetName()
	}
	return rankMetric{prometheus.NewDesc(name, help, names, nil), &dto.Metric{Label: labels, Counter: m.Counter, Histogram: m.Histogram}}
}

func (m rankMetric) Desc() *prometheus.Desc { return m.desc }

func (m rankMetric) Write(out *dto.Metric) error {
	out.Label, out.Counter, out.Histogram = m.m.Label, m.m.Counter, m.m.Histogram
	return nil
}
