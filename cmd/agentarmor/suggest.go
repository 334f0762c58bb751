package main

import "strings"

// suggest returns the candidate that word was probably meant to be, or "".
// Case, underscores and hyphens count for nothing.
func suggest(word string, candidates []string) string {
	best, bestDistance := "", max(len(word)/3, 1)+1
	for _, c := range candidates {
		if d := levenshtein(fold(word), fold(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

var folder = strings.NewReplacer("_", "", "-", "")

func fold(s string) string { return folder.Replace(strings.ToLower(s)) }

// levenshtein counts the edits of one byte that turn a into b.
func levenshtein(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
