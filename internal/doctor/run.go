// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist/flightlog"
)

// Limits of what is read of a run.
const (
	maxFiles = 20_000
	maxHead  = 256 << 10 // bytes of the beginning of a file
	maxTail  = 1 << 20   // bytes of its end
	maxLine  = 400       // bytes of a line that a finding shows
)

// Run is what the files of a run say.
type Run struct {
	Dir      string    `json:"dir"`
	Files    int       `json:"files"` // that were read
	Findings []Finding `json:"findings"`
	// Waits is the report of the flight recorders, line by line; none without dumps.
	Waits []string `json:"waits,omitempty"`
	// Notes say what could not be read.
	Notes []string `json:"notes,omitempty"`
}

// hit is a line that shows a trouble.
type hit struct {
	file string
	line string
}

// ReadRun reads the logs, error files and flight records in a directory, or a single file,
// and looks for known troubles. The error says why nothing could be read.
func ReadRun(path string) (*Run, error) {
	r := &Run{Dir: path}
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	var files []string
	dumps := map[string]bool{}
	if !st.IsDir() {
		files = []string{path}
	} else {
		err = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				r.Notes = append(r.Notes, err.Error())
				return nil
			}
			if len(files) >= maxFiles {
				r.Notes = append(r.Notes, fmt.Sprintf("%s has more than %d files: only these are read", path, maxFiles))
				return fs.SkipAll
			}
			if !d.Type().IsRegular() {
				return nil
			}
			switch name := d.Name(); {
			case dumpName.MatchString(name):
				dumps[filepath.Dir(p)] = true
			case logName.MatchString(name):
				files = append(files, p)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if len(files) == 0 && len(dumps) == 0 {
		return nil, fmt.Errorf("%s has no logs (*.log, *.out, *.err, *.txt, error.json) and no flight records (rank-N.json): give the directory of --log-dir, or the one that the report of cohort run names", path)
	}
	hits := map[string][]hit{}
	search := newSearch()
	for _, file := range files {
		if err := search.file(path, file, hits); err != nil {
			r.Notes = append(r.Notes, err.Error())
			continue
		}
		r.Files++
	}
	r.addDumps(path, dumps, hits)
	if r.Files == 0 {
		return nil, errors.New(strings.Join(r.Notes, "; "))
	}
	r.Findings = findTroubles(hits)
	return r, nil
}

var (
	logName  = regexp.MustCompile(`(?i)(\.(log|out|err|txt|jsonl)|^error\.json|^slurm-.*|^(stdout|stderr))$`)
	dumpName = regexp.MustCompile(`^rank-\d+\.json$`)
)

// addDumps reads the flight records.
func (r *Run) addDumps(root string, dirs map[string]bool, hits map[string][]hit) {
	for dir := range dirs {
		dumps, err := flightlog.Load(dir)
		if err != nil {
			r.Notes = append(r.Notes, err.Error())
		}
		if len(dumps) == 0 {
			continue
		}
		r.Files += len(dumps)
		report := flightlog.Merge(dumps)
		for _, g := range report.Groups {
			if len(g.Mismatches) > 0 {
				hits[mismatchTrouble] = append(hits[mismatchTrouble], hit{relative(root, dir), strings.Join(report.Lines(), " | ")})
			}
		}
		if report.Waits(time.Second) || len(report.Culprits()) > 0 {
			for _, line := range report.Lines() {
				if len(r.Waits) < 40 {
					r.Waits = append(r.Waits, line)
				}
			}
		}
	}
}

// mismatchTrouble is what flight records with different calls show.
const mismatchTrouble = "ranks call different collectives"

// search has the patterns of all troubles.
type search struct {
	troubles []Trouble
	lines    [][]*regexp.Regexp
	but      [][]*regexp.Regexp
}

func newSearch() *search {
	s := &search{troubles: Troubles()}
	for _, t := range s.troubles {
		s.lines = append(s.lines, compile(t.Lines))
		s.but = append(s.but, compile(t.But))
	}
	return s
}

// trouble returns the first trouble that a line shows, nil for none.
func (s *search) trouble(line []byte) *Trouble {
	fits := func(list []*regexp.Regexp) bool {
		return slices.ContainsFunc(list, func(re *regexp.Regexp) bool { return re.Match(line) })
	}
	for i := range s.troubles {
		if fits(s.lines[i]) && !fits(s.but[i]) {
			return &s.troubles[i]
		}
	}
	return nil
}

// file searches the beginning and the end of a file.
func (s *search) file(root, path string, hits map[string][]hit) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := ends(f)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) == 0 || len(line) > 64<<10 {
			continue
		}
		if t := s.trouble(line); t != nil && len(hits[t.Name]) < 1000 {
			if len(line) > maxLine {
				line = append(bytes.ToValidUTF8(line[:maxLine], nil), "…"...)
			}
			hits[t.Name] = append(hits[t.Name], hit{relative(root, path), string(line)})
		}
	}
	return nil
}

// ends returns the beginning and the end of a file.
func ends(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() <= maxHead+maxTail {
		return io.ReadAll(io.LimitReader(f, maxHead+maxTail))
	}
	head := make([]byte, maxHead, maxHead+1+maxTail)
	if _, err := io.ReadFull(f, head); err != nil {
		return nil, err
	}
	tail := make([]byte, maxTail)
	n, err := f.ReadAt(tail, st.Size()-maxTail)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return append(append(head, '\n'), tail[:n]...), nil
}

func relative(root, path string) string {
	if rel, err := filepath.Rel(root, path); err == nil && rel != "." {
		return rel
	}
	return path
}

// findTroubles makes findings of hits.
func findTroubles(hits map[string][]hit) (out []Finding) {
	causes := false
	for _, t := range Troubles() {
		causes = causes || !t.Later && len(hits[t.Name]) > 0
	}
	for _, t := range Troubles() {
		found := hits[t.Name]
		if len(found) == 0 || t.Later && causes {
			continue
		}
		f := Finding{Check: t.Name, Level: Problem, What: t.Says, Why: t.Why, Mend: t.Mend}
		where := []string{}
		for _, h := range found {
			if !slices.Contains(where, h.file) {
				where = append(where, h.file)
			}
			line := h.file + ": " + h.line
			if len(f.Lines) < 3 && !slices.Contains(f.Lines, line) {
				f.Lines = append(f.Lines, line)
			}
		}
		f.What = fmt.Sprintf("%s, in %s", t.Says, named(where))
		out = append(out, f)
	}
	return out
}
