package main

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// cell is one text of a table and the colour it is painted in, "" for none.
type cell struct{ text, colour string }

// table is rows of cells in columns two spaces apart. Colours do not count for widths.
type table struct {
	rows   [][]cell
	number []bool // of the columns: aligned right
}

// newTable returns a table with its heads; one that ends in ">" is of a column of numbers.
func newTable(heads ...string) *table {
	t := &table{}
	var row []cell
	for _, head := range heads {
		name, number := strings.CutSuffix(head, ">")
		row, t.number = append(row, cell{name, dim}), append(t.number, number)
	}
	t.add(row...)
	return t
}

func (t *table) add(row ...cell) { t.rows = append(t.rows, row) }

func (t *table) write(b *strings.Builder, paint func(colour, text string) string) {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range t.rows {
		for i, c := range row {
			gap := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.text))
			text := painted(paint, c.colour, c.text)
			switch {
			case i < len(t.number) && t.number[i]:
				text = gap + text
			case i < len(row)-1:
				text += gap
			}
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(text)
		}
		b.WriteByte('\n')
	}
}

func painted(paint func(colour, text string) string, colour, text string) string {
	if colour == "" {
		return text
	}
	return paint(colour, text)
}

// maxShown is the longest text shown on one line, in characters.
const maxShown = 200

// escape is a control sequence of a terminal (ECMA-48, 5.4).
var escape = regexp.MustCompile(`\x1b\[[0-?]*[ -/]*[@-~]`)

// printable takes line breaks and control sequences out of a text of foreign origin.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, escape.ReplaceAllString(s, ""))
}

// oneLine makes a text of foreign origin fit for a terminal: no line breaks, no
// control sequences, not endless.
func oneLine(s string) string {
	s = printable(s)
	if utf8.RuneCountInString(s) > maxShown {
		s = string([]rune(s)[:maxShown-1]) + "…"
	}
	return strings.TrimRight(s, " ")
}
