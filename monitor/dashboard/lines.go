// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/cohort-ml/cohort/internal/visible"
)

// Bounds of the lines that are kept.
const (
	maxLine  = 4 << 10  // bytes of a line
	maxLines = 2000     // of a rank
	maxText  = 32 << 20 // bytes of all ranks
	maxSent  = 1000     // lines of an answer
	maxQuery = 200      // bytes of a text that is searched for
	lookBack = 50_000   // lines of all ranks in which a text is searched for
)

// line is a line that a rank has printed.
type line struct {
	number uint64 // of all ranks, from 1
	rank   int
	isErr  bool
	text   string
}

// lines keeps the last lines of each rank. The zero value is empty.
type lines struct {
	ranks   map[int]*ring
	next    uint64
	bytes   int
	dropped map[int]bool // ranks whose first lines are gone
}

// ring is the last lines of a rank, the oldest at start.
type ring struct {
	list  []line
	start int
}

// plainLine makes text of a line: without its end, cut, and with control characters made visible.
func plainLine(b []byte) string {
	b = bytes.TrimRight(b, "\r\n")
	cut := ""
	if len(b) > maxLine {
		cut = fmt.Sprintf("… (%d bytes)", len(b))
		b = b[:maxLine]
	}
	return visible.Text(strings.ToValidUTF8(string(b), "\ufffd")) + cut
}

// add keeps a line, in place of the oldest of its rank if there are many, and of the rank with the
// most if all are too long.
func (l *lines) add(rank int, isErr bool, text string) {
	if l.ranks == nil {
		l.ranks, l.dropped = map[int]*ring{}, map[int]bool{}
	}
	r := l.ranks[rank]
	if r == nil {
		r = &ring{}
		l.ranks[rank] = r
	}
	l.next++
	r.list = append(r.list, line{l.next, rank, isErr, text})
	l.bytes += len(text)
	if len(r.list)-r.start > maxLines {
		l.drop(rank, r)
	}
	for l.bytes > maxText {
		most, of := 0, 0
		for rank, r := range l.ranks {
			if n := len(r.list) - r.start; n > most {
				most, of = n, rank
			}
		}
		l.drop(of, l.ranks[of])
	}
}

// drop forgets the oldest line of a rank.
func (l *lines) drop(rank int, r *ring) {
	l.bytes -= len(r.list[r.start].text)
	r.list[r.start].text = ""
	r.start++
	l.dropped[rank] = true
	if r.start > maxLines {
		r.list = append([]line(nil), r.list[r.start:]...)
		r.start = 0
	}
}

// since returns the lines of a rank behind a number, oldest first. They are not to be changed.
func (r *ring) since(number uint64) []line {
	kept := r.list[r.start:]
	return kept[sort.Search(len(kept), func(i int) bool { return kept[i].number > number }):]
}

// logAnswer is what the page gets of the lines.
type logAnswer struct {
	Lines []logLine `json:"lines"`
	After uint64    `json:"after"` // the number of the last line that was looked at
	Note  string    `json:"note,omitempty"`
}

type logLine struct {
	Rank int    `json:"rank"`
	Err  bool   `json:"err,omitempty"`
	Text string `json:"text"`
}

// logOf returns the last lines of a rank (-1: of all) behind a number that have a text in them.
func (j *Job) logOf(rank int, query string, after uint64) logAnswer {
	a := logAnswer{Lines: []logLine{}}
	if j == nil {
		a.Note = "there is no job"
		return a
	}
	query = strings.ToLower(query[:min(len(query), maxQuery)])
	j.mu.Lock()
	l := &j.lines
	a.After, a.Note = l.next, j.note
	if rank < 0 && l.next > lookBack {
		after = max(after, l.next-lookBack)
	}
	var found []line
	for of, r := range l.ranks {
		if rank >= 0 && of != rank {
			continue
		}
		found = append(found, r.since(after)...)
		if l.dropped[of] && a.Note == "" {
			a.Note = fmt.Sprintf("the last lines; earlier ones are no longer kept (at most %d a rank)", maxLines)
		}
	}
	j.mu.Unlock()
	if query != "" {
		found = slices.DeleteFunc(found, func(l line) bool { return !strings.Contains(strings.ToLower(l.text), query) })
	}
	slices.SortFunc(found, func(a, b line) int { return cmp.Compare(a.number, b.number) })
	for _, l := range found[max(0, len(found)-maxSent):] {
		a.Lines = append(a.Lines, logLine{l.rank, l.isErr, l.text})
	}
	return a
}
