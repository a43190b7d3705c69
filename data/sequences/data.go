// SPDX-License-Identifier: Apache-2.0

package sequences

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/chat"
	"github.com/cohort-ml/cohort/data/records"
	"github.com/cohort-ml/cohort/data/tokenizer"
)

// Options say how sequences are made.
type Options struct {
	Tokenizer *tokenizer.Tokenizer
	Template  *chat.Template // of chats; nil for none
	EndOfText int64          // token behind each text and completion; negative is none
	Context   int            // inputs of a sequence, at most
	All       bool           // the loss counts all tokens, also those of prompts
	Pack      bool           // several sequences share a row
	Skip      bool           // a record that cannot be used is left out, and no error
	Columns   Columns
	Notice    func(text string) // is told what was found; may be nil
}

// Data is the sequences of one or several sources. It is safe for concurrent use. Close it after use.
type Data struct {
	o       Options
	sources []*source
	n       int
}

// Source is a path of records and how often they come, against those of other sources.
type Source struct {
	Path   string
	Weight float64
}

// ParseMix reads a list of sources, PATH=WEIGHT.
func ParseMix(list []string) ([]Source, error) {
	var all []Source
	for _, item := range list {
		path, weight, err := parseWeighted(item)
		if err != nil {
			return nil, err
		}
		all = append(all, Source{path, weight})
	}
	return all, nil
}

// Open opens sources, and looks at some records of each.
func Open(ctx context.Context, from []Source, o Options) (_ *Data, err error) {
	if o.Context < 1 || len(from) == 0 {
		return nil, fmt.Errorf("sequences: %d sources, sequences of %d tokens: want at least 1", len(from), o.Context)
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	d := &Data{o: o}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	m := &maker{o, o.Columns}
	for _, f := range from {
		s, err := m.open(ctx, f)
		if err != nil {
			return nil, err
		}
		d.sources = append(d.sources, s)
		s.first = d.n
		d.n += s.rows()
	}
	return d, nil
}

// open opens a source.
func (m *maker) open(ctx context.Context, f Source) (_ *source, err error) {
	set, err := records.Open(ctx, f.Path, records.Options{Notice: m.Notice})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			set.Close()
		}
	}()
	if set.Len() < 2 {
		return nil, &records.Error{Path: f.Path, Detail: "has one record: one to train on and one to hold out are needed"}
	}
	head, err := set.Read(0)
	if err != nil {
		return nil, err
	}
	s := &source{maker: m, set: set, weight: f.Weight}
	if s.kind, err = m.columns.kindOf(head); err != nil {
		return nil, set.At(0, err)
	}
	s.want = m.columns.wants(s.kind)
	if err := m.ready(s.kind); err != nil {
		return nil, &records.Error{Path: f.Path, Detail: err.Error()}
	}
	looked, cut, err := s.check(ctx)
	if err != nil {
		return nil, err
	}
	note := fmt.Sprintf("%s: %d records of %s; the loss counts %s", f.Path, set.Len(), s.describe(), s.counted())
	if cut > 0 && !(m.Pack && s.kind == Text) {
		note += fmt.Sprintf("; %d of %d that were looked at are longer than --context %d and are cut", cut, looked, m.Context)
	}
	m.Notice(note)
	if m.Pack {
		if s.packs, err = s.pack(ctx); err != nil {
			return nil, err
		}
		m.Notice(s.packs.String())
	}
	return s, nil
}

// describe names the kind, and fields that have other names.
func (s *source) describe() string {
	var other []string
	for field, name := range s.columns {
		other = append(other, fmt.Sprintf("%s is %s", field, name))
	}
	if len(other) == 0 {
		return string(s.kind)
	}
	sort.Strings(other)
	return fmt.Sprintf("%s (%s)", s.kind, strings.Join(other, ", "))
}

// counted says what the loss counts.
func (s *source) counted() string {
	switch {
	case s.All || s.kind == Text:
		return "all tokens"
	case s.kind == Messages || s.kind == ShareGPT:
		return "what the assistant says"
	}
	return "the completions"
}

// rows is how many rows there are to train on.
func (s *source) rows() int {
	if s.packs != nil {
		return s.packs.len()
	}
	return s.numTraining()
}

// Len is the number of rows to train on.
func (d *Data) Len() int { return d.n }

// Names lists the sources for people.
func (d *Data) Names() string {
	var names []string
	for _, s := range d.sources {
		names = append(names, s.set.Name())
	}
	return strings.Join(names, ", ")
}

// String says what the data is, for people.
func (d *Data) String() string {
	training, held := 0, 0
	for _, s := range d.sources {
		training += s.numTraining()
		held += numHeld(s.set.Len())
	}
	rows := ""
	if d.o.Pack {
		rows = fmt.Sprintf(" in %d rows", d.n)
	}
	return fmt.Sprintf("%s: %d records to train on%s, %d held out", d.Names(), training, rows, held)
}

// Fingerprint identifies the sequences: with another fingerprint the same keys mean other samples.
func (d *Data) Fingerprint() string {
	var b strings.Builder
	fmt.Fprintf(&b, "sequences tokenizer=%s context=%d all=%t end=%d", d.o.Tokenizer.Fingerprint(), d.o.Context, d.o.All, d.o.EndOfText)
	for _, s := range d.sources {
		fmt.Fprintf(&b, " {%s %s", s.kind, s.set.Fingerprint())
		if s.kind != Text {
			fmt.Fprintf(&b, " %s", s.templatePrint())
		}
		if s.packs != nil {
			fmt.Fprintf(&b, " rows=%d crc=%08x", s.packs.len(), s.packs.sum)
		}
		b.WriteByte('}')
	}
	return b.String()
}

// Contents returns what the files of all sources hold, by their names.
func (d *Data) Contents(ctx context.Context) (map[string]string, error) {
	out := map[string]string{}
	for i, s := range d.sources {
		files, err := s.set.Contents(ctx)
		if err != nil {
			return nil, err
		}
		for name, sum := range files {
			if len(d.sources) > 1 {
				name = fmt.Sprintf("source %d %s", i+1, name)
			}
			out[name] = sum
		}
	}
	return out, nil
}

// Get returns a row. It is a pure function of the key's index.
func (d *Data) Get(ctx context.Context, key data.Key) (data.TokenWindow, error) {
	if key.Index < 0 || key.Index >= d.n {
		return data.TokenWindow{}, fmt.Errorf("sequences: row %d of %d", key.Index, d.n)
	}
	if err := ctx.Err(); err != nil {
		return data.TokenWindow{}, err
	}
	n := sort.Search(len(d.sources), func(n int) bool { return d.sources[n].first > key.Index }) - 1
	return d.sources[n].get(key.Index - d.sources[n].first)
}

// get makes a row to train on.
func (s *source) get(i int) (data.TokenWindow, error) {
	if s.packs != nil {
		return s.packed(i)
	}
	q, err := s.read(trainingAt(i, s.set.Len()))
	if err != nil {
		return data.TokenWindow{}, s.advise(err)
	}
	return row(s.Tokenizer, q.piece(0, s.Context)), nil
}

// advise says how to do without a record.
func (s *source) advise(err error) error {
	if bad := (*records.Error)(nil); !s.Skip && errors.As(err, &bad) && !strings.Contains(bad.Detail, "--on-error") {
		return fmt.Errorf("%w (--on-error skip leaves out what cannot be used)", err)
	}
	return err
}

// Sampler orders the rows for a rank: data.Stream, or data.Mixture of several sources.
func (d *Data) Sampler(total, rank, world int, seed int64) (data.Sampler, error) {
	if len(d.sources) == 1 {
		return data.NewStream(data.StreamConfig{Len: d.n, Total: total, Rank: rank, World: world, Shuffle: true, Seed: seed})
	}
	c := data.MixtureConfig{Total: total, Rank: rank, World: world, Seed: seed}
	for _, s := range d.sources {
		c.Sources = append(c.Sources, data.MixtureSource{Len: s.rows(), Weight: s.weight})
	}
	return data.NewMixture(c)
}

// Held returns sequences that are held out, of each source its share, with at most tokens that count but
// for the last one. Rows of batches have a multiple of step tokens, as data.CollateSequences says.
func (d *Data) Held(ctx context.Context, tokens, step int) (*Held, error) {
	h := &Held{length: d.o.Context, step: step}
	for n, s := range d.sources {
		most := tokens * (n + 1) / len(d.sources)
		for i := range numHeld(s.set.Len()) {
			if err := context.Cause(ctx); err != nil {
				return nil, err
			}
			if h.Counted >= most {
				break
			}
			q, err := s.read(heldAt(i, s.set.Len()))
			if err != nil && s.Skip {
				continue
			} else if err != nil {
				return nil, s.advise(err)
			}
			w := row(s.Tokenizer, q.piece(0, s.Context))
			h.rows = append(h.rows, w)
			h.bytes += int64(w.Bytes)
			for i := range len(w.Tokens) - 1 {
				if w.Ignored == nil || !w.Ignored[i] {
					h.Counted++
				}
			}
		}
	}
	if h.Counted == 0 {
		return nil, fmt.Errorf("sequences: no record that is held out of %s can be used", d.Names())
	}
	return h, nil
}

// Example is how a held-out record begins, for a sample of the model.
func (d *Data) Example() string {
	if len(d.sources) == 0 {
		return ""
	}
	s := d.sources[0]
	r, err := s.set.ReadFields(heldAt(0, s.set.Len()), s.want)
	if err != nil {
		return ""
	}
	return s.prompt(r)
}

// Close closes the files.
func (d *Data) Close() error {
	var err error
	for _, s := range d.sources {
		err = errors.Join(err, s.set.Close())
	}
	return err
}
