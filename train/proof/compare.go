// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/tensor"
)

// Kind says what differs.
type Kind string

// What two proofs may differ in, in the order of a step. What stands at the top explains what
// stands below it.
const (
	LoadedWeights   Kind = "loaded weights"         // before the step
	LoadedOptimizer Kind = "loaded optimizer state" // before the step
	LoaderPlace     Kind = "place of the loader"
	SampleIDs       Kind = "samples"
	SampleContents  Kind = "contents of the samples"
	LearningRate    Kind = "learning rate"
	Loss            Kind = "loss"
	Gradient        Kind = "gradient"
	GradientNorm    Kind = "norm of all gradients"
	Weights         Kind = "weights" // after the step
	Optimizer       Kind = "optimizer state"
)

// stages puts the kinds in an order: those of an early stage are causes of those of later ones.
var stages = map[Kind]int{
	LoadedWeights: 1, LoadedOptimizer: 1, LoaderPlace: 1, SampleIDs: 1, SampleContents: 1, LearningRate: 1,
	Loss: 2, Gradient: 2, GradientNorm: 2, Weights: 3, Optimizer: 3,
}

// Difference is one thing in which a step that was done again is not the step of the run.
type Difference struct {
	Kind    Kind    `json:"kind"`
	Name    string  `json:"name,omitempty"` // of the tensor, or of the parameter group
	Was     string  `json:"was"`            // in the run
	Is      string  `json:"is"`             // now
	Apart   float64 `json:"apart,omitempty"`
	Hint    string  `json:"hint,omitempty"`    // what it looks like
	Follows bool    `json:"follows,omitempty"` // from a difference before it
}

// String is one line.
func (d Difference) String() string {
	s := string(d.Kind)
	if d.Name != "" {
		s += " " + d.Name
	}
	s += ": " + d.Is + ", was " + d.Was
	if d.Apart > 0 {
		s += fmt.Sprintf(" (apart by %.2g of it)", d.Apart)
	}
	if d.Hint != "" {
		s += ": " + d.Hint
	}
	return s
}

// Comparison is what Compare has found.
type Comparison struct {
	Step        int          `json:"step"`
	Exact       bool         `json:"exact"`               // bits were compared
	Why         string       `json:"why,omitempty"`       // bits were not compared
	Tolerance   float64      `json:"tolerance,omitempty"` // relative, where bits were not compared
	LeftOut     string       `json:"left_out,omitempty"`  // what cannot be compared, and why
	Tensors     int          `json:"tensors"`             // compared
	Differences []Difference `json:"differences"`
}

// Result says in a few words how the comparison ended.
func (c *Comparison) Result() string {
	how := "all bits are equal"
	switch {
	case len(c.Differences) == 1:
		how = "1 difference"
	case len(c.Differences) > 0:
		how = fmt.Sprintf("%d differences", len(c.Differences))
	case !c.Exact:
		how = fmt.Sprintf("equal within %g, not by bits (%s)", c.Tolerance, c.Why)
	}
	return fmt.Sprintf("%d tensors compared, %s", c.Tensors, how)
}

// String says for people what was compared. What differs is a line each.
func (c *Comparison) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "step %d, done again from the checkpoint of step %d: %s\n", c.Step+1, c.Step, c.Result())
	if c.LeftOut != "" {
		fmt.Fprintf(&b, "left out: %s\n", c.LeftOut)
	}
	for _, d := range c.Differences {
		if d.Follows {
			b.WriteString("  follows: ")
		}
		fmt.Fprintln(&b, d)
	}
	return b.String()
}

// Default tolerances, relative to the norm of a tensor.
const (
	tolerance     = 1e-5
	tolerance16   = 2e-2 // of steps that compute in bfloat16
	noise         = 2e-7 // of all gradients together, in each of them
	noiseOfUpdate = 1e-3 // of the update of a tensor: an update may enlarge the noise of a gradient
)

// Compare compares the step of a run with the same step, done again from the checkpoint. On the
// mesh of the run it compares bits; elsewhere it allows a relative difference of maxApart, or a
// default of 1e-5 if maxApart is 0.
func Compare(run, again *Proof, maxApart float64) *Comparison {
	c := &comparison{run: run, again: again}
	c.Step, c.Differences = run.Step, []Difference{}
	c.Why = run.Made.otherThan(again.Made)
	c.Exact = c.Why == ""
	if !c.Exact {
		c.Tolerance = maxApart
		if maxApart == 0 {
			c.Tolerance = tolerance
			if run.Made.DType != "float32" || again.Made.DType != "float32" {
				c.Tolerance = tolerance16
			}
		}
	}
	c.loaded(LoadedWeights, run.Before.Weights, again.Before.Weights)
	c.loaded(LoadedOptimizer, run.Before.Optimizer, again.Before.Optimizer)
	c.batch()
	c.rates()
	if c.LeftOut = c.leftOut(); c.LeftOut == "" {
		c.step()
	}
	c.order()
	return &c.Comparison
}

// otherThan says in what a step was computed in another way, so that bits may differ.
func (m Made) otherThan(o Made) string {
	var why []string
	tell := func(what, was, is string) {
		if was != is {
			why = append(why, fmt.Sprintf("%s: %s, was %s", what, cmp.Or(is, "none"), cmp.Or(was, "none")))
		}
	}
	tell("ranks", fmt.Sprint(m.Ranks), fmt.Sprint(o.Ranks))
	tell("model", m.Strategy, o.Strategy)
	tell("threads of a rank", fmt.Sprint(m.Threads), fmt.Sprint(o.Threads))
	tell("instructions", m.Kernels, o.Kernels)
	tell("computing in", m.DType, o.DType)
	if m.Ranks > 1 && (!m.ordered() || !o.ordered()) {
		tell("ranks meet by", m.Wire, o.Wire)
	}
	return strings.Join(why, "; ")
}

// ordered reports whether sums over ranks go in the order of ranks: see package dist.
func (m Made) ordered() bool {
	return m.Wire == "shm" || m.Wire == "goroutines" || m.Wire == "none"
}

// comparison is a Comparison in the making.
type comparison struct {
	Comparison
	run, again *Proof
}

func (c *comparison) add(d Difference) { c.Differences = append(c.Differences, d) }

// leftOut says why the arithmetic of the step cannot be compared.
func (c *comparison) leftOut() string {
	const arithmetic = "loss, gradients and update: "
	split := c.run.Made.Ranks != c.again.Made.Ranks || c.run.Made.Strategy != c.again.Made.Strategy
	switch {
	case !split:
		return ""
	case c.run.Made.Random:
		return arithmetic + "the step draws random numbers such as dropout's, which depend on how the samples are shared out; prove it on the mesh of the run"
	case c.run.Made.Batched:
		return arithmetic + "the step writes statistics of its batches, which depend on how the samples are shared out; prove it on the mesh of the run"
	}
	return ""
}

// pair is a tensor that both proofs have.
type pair struct {
	name    string
	was, is Digest
}

// both returns what both have, by name, and tells of what only one has.
func (c *comparison) both(kind Kind, was, is Digests) []pair {
	var pairs []pair
	for _, name := range slices.Sorted(maps.Keys(was)) {
		d, ok := is[name]
		switch w := was[name]; {
		case !ok:
			c.add(Difference{Kind: kind, Name: name, Was: w.text(), Is: "is not there", Hint: "tensors of the run are missing, or were tied to others"})
		case d.Elems != w.Elems:
			c.add(Difference{Kind: kind, Name: name, Was: fmt.Sprintf("%d elements", w.Elems), Is: fmt.Sprintf("%d elements", d.Elems)})
		default:
			pairs = append(pairs, pair{name, w, d})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is)) {
		if _, ok := was[name]; !ok {
			c.add(Difference{Kind: kind, Name: name, Was: "not there", Is: is[name].text(), Hint: "the run had no such tensor: a weight that was tied to another, such as an output layer to the embedding, came back untied"})
		}
	}
	c.Tensors += len(pairs)
	return pairs
}

// loaded compares the state before the step, whose bits no mesh changes.
func (c *comparison) loaded(kind Kind, was, is Digests) {
	for _, p := range c.both(kind, was, is) {
		if p.was.Sum != p.is.Sum {
			hint := p.is.hint(p.was)
			if look, ok := c.again.Looks[p.name]; ok && hint == "" {
				hint = look.hint(p.was.Elems)
			}
			c.add(Difference{Kind: kind, Name: p.name, Was: p.was.text(), Is: p.is.text(), Apart: apartNorms(p.was, p.is), Hint: hint})
		}
	}
}

func (d Digest) text() string { return fmt.Sprintf("norm %.6g", d.Norm()) }

// hint says what a tensor that is not the one it was looks like.
func (d Digest) hint(was Digest) string {
	switch norm := was.Norm(); {
	case d.Squares == 0 && norm > 0:
		return "it is all zeros: it was not saved, or not loaded"
	case math.Abs(d.Norm()-norm) <= 1e-9*norm:
		return "the norm is the same: its elements may be in other places, such as rows that are exchanged"
	}
	return ""
}

func apartNorms(was, is Digest) float64 {
	if was.Squares == 0 {
		return 0
	}
	return math.Abs(is.Norm()-was.Norm()) / was.Norm()
}

// batch compares what the steps were trained on.
func (c *comparison) batch() {
	was, is := c.run.Batch, c.again.Batch
	if was.Order != is.Order {
		c.add(Difference{Kind: LoaderPlace, Was: "order " + was.Order, Is: "order " + is.Order, Hint: "the data or their order are others"})
	}
	if was.Position != is.Position {
		c.add(Difference{
			Kind: LoaderPlace, Was: fmt.Sprintf("after sample %d", was.Position), Is: fmt.Sprintf("after sample %d", is.Position),
			Hint: "the loader was moved, or a step takes another number of samples",
		})
	}
	switch {
	case was.Samples.Count != is.Samples.Count || was.Samples.IDs != is.Samples.IDs:
		c.add(Difference{Kind: SampleIDs, Was: was.Samples.text(), Is: is.Samples.text(), Hint: "the step takes other samples"})
	case was.Samples.Contents != is.Samples.Contents && (was.Samples.Count > 0 || c.run.Made.Ranks == c.again.Made.Ranks):
		c.add(Difference{
			Kind: SampleContents, Was: fmt.Sprintf("checksum %016x", was.Samples.Contents), Is: fmt.Sprintf("checksum %016x", is.Samples.Contents),
			Hint: "the samples have the same numbers and other contents: the data have changed",
		})
	}
}

func (s Samples) text() string { return fmt.Sprintf("%d samples (checksum %016x)", s.Count, s.IDs) }

// rates compares the options of the update.
func (c *comparison) rates() {
	for i := range max(len(c.run.Rates), len(c.again.Rates)) {
		text := func(rates []Rate) string {
			if i >= len(rates) {
				return "not there"
			}
			return strings.TrimSuffix(fmt.Sprintf("%g with momentum %g", rates[i].LR, rates[i].Momentum), " with momentum 0")
		}
		if was, is := text(c.run.Rates), text(c.again.Rates); was != is {
			c.add(Difference{Kind: LearningRate, Name: fmt.Sprintf("of group %d", i), Was: was, Is: is})
		}
	}
}

// step compares the arithmetic of the step.
func (c *comparison) step() {
	c.number(Loss, c.run.Loss, c.again.Loss)
	c.number(GradientNorm, c.run.Norm, c.again.Norm)
	slack := make(map[string]float64) // by parameter: relative noise of its gradient
	// An optimizer that divides by the size of gradients, as Adam does, moves an element whose
	// gradient is rounding alone as far as others: by about the learning rate.
	moved := make(map[string]float64)
	rate := 0.0
	for _, r := range c.run.Rates {
		rate = max(rate, r.LR)
	}
	for _, p := range c.both(Gradient, c.run.Gradients, c.again.Gradients) {
		slack[p.name] = min(1, noise*c.run.Norm/p.was.Norm())
		moved[p.name] = 2 * rate * math.Sqrt(float64(max(p.was.Tiny, p.is.Tiny)))
		c.tensor(Gradient, p, p.was.Norm()*(c.Tolerance+slack[p.name]))
	}
	for _, p := range c.both(Optimizer, c.run.After.Optimizer, c.again.After.Optimizer) {
		_, param, _ := strings.Cut(p.name, ".")
		// A second moment has squares of gradients: what is apart by d has squares apart by 2d.
		c.tensor(Optimizer, p, p.was.Norm()*2*(c.Tolerance+slack[param]))
	}
	for _, p := range c.both(Weights, c.run.After.Weights, c.again.After.Weights) {
		update := c.run.Before.Weights[p.name].apart(p.was)
		c.tensor(Weights, p, p.was.Norm()*c.Tolerance+update*(slack[p.name]+noiseOfUpdate)+moved[p.name])
	}
}

// apart estimates the norm of the difference of two tensors, if both have projections.
func (d Digest) apart(o Digest) float64 {
	sum := 0.0
	for i := range d.Signs {
		sum += (d.Signs[i] - o.Signs[i]) * (d.Signs[i] - o.Signs[i])
	}
	return math.Sqrt(sum / numSigns)
}

// number compares two numbers.
func (c *comparison) number(kind Kind, was, is float64) {
	apart := math.Abs(is - was)
	if was == is || !c.Exact && apart <= c.Tolerance*math.Abs(was) {
		return
	}
	c.add(Difference{Kind: kind, Was: fmt.Sprintf("%.9g", was), Is: fmt.Sprintf("%.9g", is), Apart: apart / math.Abs(was)})
}

// tensor compares a tensor, which may be off by most where bits are not compared.
func (c *comparison) tensor(kind Kind, p pair, most float64) {
	if p.was.Sum == p.is.Sum {
		return
	}
	apart := max(math.Abs(p.was.Norm()-p.is.Norm()), p.was.apart(p.is))
	if !c.Exact && apart <= most {
		return
	}
	d := Difference{Kind: kind, Name: p.name, Was: p.was.text(), Is: p.is.text(), Hint: p.is.hint(p.was)}
	if norm := p.was.Norm(); norm > 0 {
		d.Apart = apart / norm
	}
	c.add(d)
}

// order sorts the differences as a step goes, and marks those that follow from others.
func (c *comparison) order() {
	slices.SortStableFunc(c.Differences, func(a, b Difference) int { return stages[a.Kind] - stages[b.Kind] })
	for i, d := range c.Differences {
		c.Differences[i].Follows = stages[d.Kind] > stages[c.Differences[0].Kind]
	}
}

// Look is what a tensor that differs looks like.
type Look struct {
	Zeros  int64 // elements that are zero
	Halves int64 // elements that bfloat16 has too
}

func (l Look) hint(elems int64) string {
	switch {
	case l.Halves == elems && l.Zeros < elems:
		return "all its elements are numbers of bfloat16: it was saved or loaded in another dtype"
	case l.Zeros > 0:
		return fmt.Sprintf("%d of its %d elements are zero", l.Zeros, elems)
	}
	return ""
}

// LookAt counts in the elements of a float32 tensor.
func LookAt(t *tensor.Tensor) (l Look) {
	if t.DType() != tensor.Float32 {
		return l
	}
	onHost(t).WithFloat32s(func(data []float32) {
		for _, x := range data {
			if x == 0 {
				l.Zeros++
			}
			if math.Float32bits(x)&0xffff == 0 {
				l.Halves++
			}
		}
	})
	return l
}

// Err returns nil if nothing differs, else a [DifferenceError].
func (c *Comparison) Err() error {
	if len(c.Differences) == 0 {
		return nil
	}
	return &DifferenceError{Comparison: c}
}

// DifferenceError says that a checkpoint does not continue its run as the run went on.
type DifferenceError struct{ *Comparison }

func (e *DifferenceError) Error() string {
	const most = 4
	var causes []string
	follow := 0
	for _, d := range e.Differences {
		if d.Follows {
			follow++
		} else {
			causes = append(causes, d.String())
		}
	}
	s := fmt.Sprintf("the checkpoint of step %d does not continue its run: ", e.Step) + strings.Join(causes[:min(most, len(causes))], "; ")
	if n := len(causes) - most; n > 0 {
		s += fmt.Sprintf("; and %d more", n)
	}
	if follow > 0 {
		s += fmt.Sprintf("; %d differences of the step follow from it", follow)
	}
	return s
}
