// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// WithStaticGraph says that all training passes of a rank reach the same parameters as its
// first: PyTorch's static_graph. A bucket then need not wait for the end of a pass for the
// gradient of a parameter that this rank does not use. A pass that reaches other parameters is a
// [*StaticGraphError] of every rank. All ranks give the option. With [WithPyTorch] it is
// [PyTorchOptions.StaticGraph].
func WithStaticGraph() DDPOption { return func(o *ddpOptions) { o.static = true } }

// StaticGraphError says that a pass has reached other parameters than the first one.
type StaticGraphError struct {
	Rank    int      // the lowest rank with such a pass
	Params  []string // that differ
	Reached bool     // the first pass did not reach them, and this one has; else the other way round
}

func (e *StaticGraphError) Error() string {
	what := strings.Join(e.Params[:min(len(e.Params), 5)], ", ")
	if n := len(e.Params) - 5; n > 0 {
		what += fmt.Sprintf(" and %d more", n)
	}
	did, first := "did not reach", "did"
	if e.Reached {
		did, first = "reached", "did not"
	}
	return fmt.Sprintf("ddp: the pass of rank %d %s %s, which its first pass %s, although WithStaticGraph says that all passes are alike: leave the option out", e.Rank, did, what, first)
}

// staticGraph is what a reducer knows of passes that are alike.
type staticGraph struct {
	flag   *tensor.Tensor // [1]: how many ranks have had another pass; it travels with the last bucket, or behind hooks
	known  bool           // the first pass is over
	unused []*nn.Parameter

	// of the backward pass under way
	brought  bool // zeros for the unused parameters are in their buckets
	bringing bool
	missed   []string // the pass did not reach them, and the first did
	reached  []string // the other way round
}

func (s *staticGraph) begin() { s.brought, s.missed, s.reached = false, nil, nil }

// fill marks the last bucket of a pass that is not like the first.
func (s *staticGraph) fill() {
	s.flag.Fill(0)
	if s.missed != nil || s.reached != nil {
		s.flag.Fill(1)
	}
}

// bring puts zeros into the buckets for the parameters that no pass of this rank reaches.
func (r *nativeReducer) bring(ctx context.Context) error {
	s := r.static
	if s == nil || !s.known || s.brought {
		return nil
	}
	s.brought, s.bringing = true, true
	defer func() { s.bringing = false }()
	for _, p := range s.unused {
		b := r.bucketOf[p]
		if p.Grad() != nil {
			b.missing--
			continue
		}
		i := slices.Index(b.params, p)
		b.views[i].Fill(0)
		b.unused = append(b.unused, i)
		if p.Frozen {
			b.missing--
			continue
		}
		if err := p.GradReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// expects says whether the gradient of a parameter comes from the pass, or from bring.
func (s *staticGraph) expects(p *nn.Parameter) bool {
	if s == nil || !s.known || s.bringing || !slices.Contains(s.unused, p) {
		return true
	}
	s.reached = append(s.reached, p.Name())
	return false
}

// misses notes that the pass has not reached a parameter.
func (s *staticGraph) misses(p *nn.Parameter) {
	if s != nil && s.known && !p.Frozen && !slices.Contains(s.unused, p) {
		s.missed = append(s.missed, p.Name())
	}
}

// learn notes what the first pass has not reached.
func (r *nativeReducer) learn() {
	if r.static.known {
		return
	}
	for _, b := range r.buckets {
		for _, i := range b.unused {
			r.static.unused = append(r.static.unused, b.params[i])
		}
	}
	r.static.known = true
}

// compare fails on all ranks if the pass of one was not like its first.
func (s *staticGraph) compare(ctx context.Context, group *dist.Group) error {
	if s.flag.Item() == 0 {
		return nil
	}
	own := StaticGraphError{Rank: group.Rank(), Params: s.missed}
	if s.missed == nil {
		own.Params, own.Reached = s.reached, true
	}
	text, err := json.Marshal(own)
	if err != nil {
		return err
	}
	if own.Params == nil {
		text = nil
	}
	first, err := firstReport(ctx, group, text)
	if err != nil {
		return fmt.Errorf("ddp: ask which rank's pass is not like its first: %w", err)
	}
	e := &StaticGraphError{}
	if err := json.Unmarshal(first, e); err != nil {
		return fmt.Errorf("ddp: a rank described its pass as %q: %w", first, err)
	}
	return e
}

// firstReport returns the text of the lowest rank that has one, on every rank.
func firstReport(ctx context.Context, group *dist.Group, text []byte) ([]byte, error) {
	sizes, err := gather(ctx, group, []int64{int64(len(text))})
	if err != nil {
		return nil, err
	}
	from := slices.IndexFunc(sizes, func(n []int64) bool { return n[0] > 0 })
	if from < 0 {
		return nil, nil
	}
	buf := make([]int64, sizes[from][0])
	for i, c := range text {
		if group.Rank() == from {
			buf[i] = int64(c)
		}
	}
	t := tensor.FromInt64(buf)
	if err := group.Broadcast(ctx, t, from); err != nil {
		return nil, err
	}
	var out []byte
	for _, c := range t.Int64s() {
		out = append(out, byte(c))
	}
	return out, nil
}
