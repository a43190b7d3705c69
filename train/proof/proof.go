// SPDX-License-Identifier: Apache-2.0

package proof

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// FileName is the file of a proof, beside the files of its checkpoint.
const FileName = "proof.json"

const (
	format  = "cohort-proof"
	version = 1
	// MaxBytes bounds the file: some million digests.
	MaxBytes = 256 << 20
)

// Proof is what a run noted of the step after a checkpoint.
type Proof struct {
	Step   int    // of the checkpoint: the proof is of the step after it
	Made   Made   // how it was computed
	Before State  // as the checkpoint should have it
	Batch  Batch  // of all ranks and passes
	Rates  []Rate // of the update, by parameter group

	Loss float64 // mean over all samples
	Norm float64 // of all gradients together, before they are clipped

	Gradients Digests // averaged over all ranks
	After     State   // the update

	// Looks says of loaded tensors that differ, by name, what they look like. It is not saved.
	Looks map[string]Look
}

// Made says how a step was computed. Two steps of equal Made have the same bits.
type Made struct {
	Task     string `json:"task"`
	Program  string `json:"program,omitempty"`
	Ranks    int    `json:"ranks"`
	Strategy string `json:"strategy"` // how the model was spread over the ranks
	Threads  int    `json:"threads"`  // of each rank
	Kernels  string `json:"kernels"`  // instructions of the processor
	Wire     string `json:"wire"`     // how the ranks reached each other
	DType    string `json:"dtype"`    // that passes compute in
	// Random says that the step drew random numbers, such as dropout's, which depend on how
	// the samples are shared out.
	Random bool `json:"random,omitempty"`
	// Batched says that the step wrote buffers of the model, such as statistics of a
	// batch, which depend on how the samples are shared out.
	Batched bool `json:"batched,omitempty"`
}

// Rate is the options of a parameter group in an update.
type Rate struct {
	LR       float64 `json:"lr"`
	Momentum float64 `json:"momentum,omitempty"`
}

// Batch is what a step was trained on.
type Batch struct {
	Order    string `json:"order"` // of the samples, as the loader describes it
	Position int64  `json:"position"`
	Samples  Samples
}

// State is the weights of a model and the state of its optimizer.
type State struct {
	Weights   Digests `json:"weights"`
	Optimizer Digests `json:"optimizer"`
}

// Digests are those of tensors, by name.
type Digests map[string]Digest

// file is a Proof in its JSON form.
type file struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	Step    int    `json:"step"`
	Made    Made   `json:"made"`
	Batch   struct {
		Order    string `json:"order"`
		Position int64  `json:"position"`
		Samples  int64  `json:"samples"`
		IDs      hex    `json:"ids"`
		Contents hex    `json:"contents"`
	} `json:"batch"`
	Rates     []Rate  `json:"rates"`
	Loss      float64 `json:"loss"`
	Norm      float64 `json:"norm"`
	Before    State   `json:"before"`
	Gradients Digests `json:"gradients"`
	After     State   `json:"after"`
}

// hex is a checksum in JSON, whose numbers are too short for it.
type hex uint64

func (h hex) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%016x", uint64(h)), nil }

func (h *hex) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 16, 64)
	if err != nil || len(text) != 16 {
		return fmt.Errorf("the checksum %.20q is no 16 hexadecimal digits", text)
	}
	*h = hex(v)
	return nil
}

// digest is a Digest in its JSON form.
type digest struct {
	Elems   int64     `json:"elems"`
	Sum     hex       `json:"sum"`
	Squares float64   `json:"squares"`
	Signs   []float64 `json:"signs,omitempty"`
	Tiny    int64     `json:"tiny,omitempty"`
}

// MarshalJSON implements [json.Marshaler].
func (d Digest) MarshalJSON() ([]byte, error) {
	out := digest{d.Elems, hex(d.Sum), d.Squares, nil, d.Tiny}
	if d.Signs != [numSigns]float64{} {
		out.Signs = d.Signs[:]
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements [json.Unmarshaler].
func (d *Digest) UnmarshalJSON(text []byte) error {
	var in digest
	if err := strictly(text, &in); err != nil {
		return err
	}
	if in.Elems < 0 || in.Tiny < 0 || !(in.Squares >= 0) || len(in.Signs) != 0 && len(in.Signs) != numSigns {
		return fmt.Errorf("a digest has %d elements, squares %v and %d signs", in.Elems, in.Squares, len(in.Signs))
	}
	*d = Digest{Elems: in.Elems, Sum: uint64(in.Sum), Squares: in.Squares, Tiny: in.Tiny}
	copy(d.Signs[:], in.Signs)
	return nil
}

// strictly decodes one JSON value without unknown fields.
func strictly(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is something after its end")
	}
	return nil
}

// Finite reports whether all numbers of a proof are finite. Only such a proof can be encoded.
func (p *Proof) Finite() bool {
	ok := isFinite(p.Loss) && isFinite(p.Norm)
	for _, ds := range p.all() {
		for _, d := range ds {
			ok = ok && isFinite(d.Squares)
			for _, s := range d.Signs {
				ok = ok && isFinite(s)
			}
		}
	}
	return ok
}

func (p *Proof) all() []Digests {
	return []Digests{p.Before.Weights, p.Before.Optimizer, p.Gradients, p.After.Weights, p.After.Optimizer}
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Encode returns a proof as JSON, for [FileName].
func (p *Proof) Encode() ([]byte, error) {
	f := file{
		Format: format, Version: version, Step: p.Step, Made: p.Made, Rates: p.Rates,
		Loss: p.Loss, Norm: p.Norm, Before: p.Before, Gradients: p.Gradients, After: p.After,
	}
	f.Batch.Order, f.Batch.Position = p.Batch.Order, p.Batch.Position
	f.Batch.Samples, f.Batch.IDs, f.Batch.Contents = p.Batch.Samples.Count, hex(p.Batch.Samples.IDs), hex(p.Batch.Samples.Contents)
	text, err := json.MarshalIndent(f, "", " ")
	if err != nil {
		return nil, fmt.Errorf("proof of step %d: %w", p.Step, err)
	}
	return append(text, '\n'), nil
}

// Parse reads a proof.
func Parse(text []byte) (*Proof, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("the proof has %d bytes, more than the %d allowed", len(text), MaxBytes)
	}
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return nil, fmt.Errorf("the proof is not JSON: %w", err)
	}
	switch {
	case head.Format != format:
		return nil, fmt.Errorf("the proof has format %.40q, not %q", head.Format, format)
	case head.Version != version:
		return nil, fmt.Errorf("the proof has version %d, and this program reads version %d: use the program that wrote it, or a newer one", head.Version, version)
	}
	var f file
	if err := strictly(text, &f); err != nil {
		return nil, fmt.Errorf("the proof cannot be read: %w", err)
	}
	if f.Step < 0 || f.Made.Ranks < 1 || f.Made.Threads < 1 || f.Batch.Samples < 0 {
		return nil, fmt.Errorf("the proof is of step %d, %d ranks of %d threads and %d samples", f.Step, f.Made.Ranks, f.Made.Threads, f.Batch.Samples)
	}
	return &Proof{
		Step: f.Step, Made: f.Made, Rates: f.Rates, Loss: f.Loss, Norm: f.Norm, Before: f.Before, Gradients: f.Gradients, After: f.After,
		Batch: Batch{f.Batch.Order, f.Batch.Position, Samples{f.Batch.Samples, uint64(f.Batch.IDs), uint64(f.Batch.Contents)}},
	}, nil
}
