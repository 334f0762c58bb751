package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"strings"
)

//go:embed crashreport.html
var crashPage string

var crashTemplate = template.Must(template.New("report").Parse(crashPage))

// page is the report as one HTML file that needs nothing else.
func (c *crashReport) page() ([]byte, error) {
	var b bytes.Buffer
	err := crashTemplate.Execute(&b, map[string]any{
		"Report": c, "Table": c.table(func(_, text string) string { return text }),
		"Success": c.successChart(), "Latency": c.latencyChart(), "Timeline": c.timelineChart(), "Version": version(),
	})
	return b.Bytes(), err
}

// chart is an SVG drawing with two axes. Its methods take what is measured,
// not pixels.
type chart struct {
	b            strings.Builder
	maxX, maxY   float64
	logX         bool
	minX         float64 // with logX
	height, left int
}

const (
	chartWidth  = 760
	chartRight  = 24
	chartTop    = 12
	chartBottom = 40
)

func newChart(height int, minX, maxX, maxY float64, logX bool) *chart {
	return &chart{maxX: maxX, maxY: maxY, minX: minX, logX: logX, height: height, left: 52}
}

func (c *chart) x(v float64) float64 {
	share := (v - c.minX) / (c.maxX - c.minX)
	if c.logX {
		share = math.Log(max(v, c.minX)/c.minX) / math.Log(c.maxX/c.minX)
	}
	return float64(c.left) + share*float64(chartWidth-c.left-chartRight)
}

func (c *chart) y(v float64) float64 {
	return float64(c.height-chartBottom) - v/c.maxY*float64(c.height-chartBottom-chartTop)
}

// tickX and tickY label an axis at a value.
func (c *chart) tickX(v float64, label string) {
	fmt.Fprintf(&c.b, `<line class="grid" x1="%[1]s" x2="%[1]s" y1="%[2]d" y2="%[3]d"/><text x="%[1]s" y="%[4]d" text-anchor="middle">%[5]s</text>`,
		pixel(c.x(v)), chartTop, c.height-chartBottom, c.height-chartBottom+16, template.HTMLEscapeString(label))
}

func (c *chart) tickY(v float64, label string) {
	fmt.Fprintf(&c.b, `<line class="grid" x1="%[1]d" x2="%[2]d" y1="%[3]s" y2="%[3]s"/><text x="%[4]d" y="%[3]s" dy="4" text-anchor="end">%[5]s</text>`,
		c.left, chartWidth-chartRight, pixel(c.y(v)), c.left-6, template.HTMLEscapeString(label))
}

// line draws y over x, in the colour of a class of the page.
func (c *chart) line(xs, ys []float64, class, dash string) {
	var points []string
	for i := range xs {
		points = append(points, pixel(c.x(xs[i]))+","+pixel(c.y(ys[i])))
	}
	fmt.Fprintf(&c.b, `<polyline class="%s" points="%s" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="%s"/>`, class, strings.Join(points, " "), dash)
}

// svg is the drawing, with what is written below it.
func (c *chart) svg(xLabel string) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg viewBox="0 0 %d %d" role="img">%s<text x="%d" y="%d" text-anchor="middle">%s</text></svg>`,
		chartWidth, c.height, c.b.String(), (c.left+chartWidth)/2, c.height-4, template.HTMLEscapeString(xLabel)))
}

func pixel(v float64) string { return fmt.Sprintf("%.1f", v) }

// successChart is the share of runs that succeed, by their number of steps,
// against the curve that independent faults predict.
func (c *crashReport) successChart() template.HTML {
	n := c.Steps
	d := newChart(300, 0, float64(n), 1, false)
	for _, share := range []float64{0, 0.25, 0.5, 0.75, 1} {
		d.tickY(share, fmt.Sprintf("%.0f %%", 100*share))
	}
	for i := range 6 {
		at := math.Round(float64(n) * float64(i) / 5)
		d.tickX(at, fmt.Sprint(at))
	}
	xs, predicted := []float64{0}, []float64{1}
	for i := range n {
		xs, predicted = append(xs, float64(i+1)), append(predicted, math.Pow(1-c.FaultRate, float64(i+1)))
	}
	d.line(xs, predicted, "curve", "6 4")
	d.line(xs, append([]float64{1}, c.Naive.BySteps...), "naive", "")
	d.line(xs, append([]float64{1}, c.Armored.UnaidedBySteps...), "armored", "6 4")
	d.line(xs, append([]float64{1}, c.Armored.BySteps...), "armored", "")
	return d.svg("steps of a run")
}

// latencyChart is how the latencies of steps are distributed, on a logarithmic scale.
func (c *crashReport) latencyChart() template.HTML {
	most, high := histogramFirst*10, 0.0
	for _, l := range []*laneReport{&c.Naive, &c.Armored} {
		for _, h := range l.Latency {
			most, high = max(most, h.UpToMS), max(high, float64(h.Steps)/float64(l.StepsMade))
		}
	}
	d := newChart(240, histogramFirst, most, max(high, 0.01), true)
	for at := 1.0; at <= most; at *= 10 {
		d.tickX(at, milliseconds(at))
	}
	d.tickY(0, "0 %")
	d.tickY(high, fmt.Sprintf("%.0f %%", 100*high))
	for _, lane := range []struct {
		*laneReport
		class string
	}{{&c.Naive, "naive"}, {&c.Armored, "armored"}} {
		var xs, ys []float64
		for _, h := range lane.Latency {
			xs, ys = append(xs, h.UpToMS), append(ys, float64(h.Steps)/float64(lane.StepsMade))
		}
		d.line(xs, ys, lane.class, "")
	}
	return d.svg("time of a step")
}

// breakerClasses are those of breakers that are not closed.
var breakerClasses = map[string]string{"open": "open", "half_open": "half"}

const rowHeight = 22

// timelineChart shows when faults were met in both lanes, and when which
// breaker was not closed.
func (c *crashReport) timelineChart() template.HTML {
	total := max(c.Naive.TookMS, c.Armored.TookMS, 1)
	var names []string
	open := map[string][]breakerMark{}
	for _, m := range c.Armored.Breakers {
		if open[m.Name] == nil {
			names = append(names, m.Name)
		}
		open[m.Name] = append(open[m.Name], m)
	}
	d := newChart(chartTop+chartBottom+rowHeight*(2+len(names)), 0, total, 1, false)
	d.left = 180
	for i := range 6 {
		d.tickX(total*float64(i)/5, milliseconds(total*float64(i)/5))
	}
	row := func(i int, name string) (top int) {
		top = chartTop + i*rowHeight
		fmt.Fprintf(&d.b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, d.left-8, top+15, template.HTMLEscapeString(name))
		return top + 3
	}
	mark := func(top int, from, to float64, class string) {
		fmt.Fprintf(&d.b, `<rect class="%s" x="%s" y="%d" width="%s" height="%d" fill="currentColor"/>`, class, pixel(d.x(from)), top, pixel(max(1, d.x(to)-d.x(from))), rowHeight-6)
	}
	top := row(0, "faults, naive")
	for _, at := range c.Naive.FaultsAtMS {
		mark(top, at, at, "naive")
	}
	top = row(1, "faults, armored")
	for _, at := range c.Armored.FaultsAtMS {
		mark(top, at, at, "armored")
	}
	for i, name := range names {
		top := row(2+i, "breaker "+name)
		for n, m := range open[name] {
			end := c.Armored.TookMS
			if n+1 < len(open[name]) {
				end = open[name][n+1].AtMS
			}
			if class := breakerClasses[m.State]; class != "" {
				mark(top, m.AtMS, end, class)
			}
		}
	}
	return d.svg("since the begin of the lane")
}
