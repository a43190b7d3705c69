// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// namedDTypes is DTypes of testdata/ddp_live.py, and what its SGD does with a rate of
// 1/8, for the optimizers here take float32 alone.
type namedDTypes struct {
	Params []*nn.Parameter
	at     int
}

func newNamedDTypes(names []string, rank int) *namedDTypes {
	m := &namedDTypes{at: rank}
	for i, name := range names {
		p := nn.NewParameter(tensor.Full(0.25*float64(i+1)+float64(rank), 3))
		for d := tensor.Float32; d.Valid(); d++ {
			if d.String() == name {
				p.SetData(p.Data().To(d))
			}
		}
		m.Params = append(m.Params, p)
	}
	return m
}

func (m *namedDTypes) Forward(c *nn.Ctx, x *tensor.Tensor) *tensor.Tensor {
	m.at++
	sum := x.Sum().MulScalar(0)
	in := tensor.FromInt64([]int64{0, 1, 2}).To(tensor.Float32).AddScalar(float64(1 + m.at%5)).DivScalar(8)
	for _, p := range m.Params {
		sum = sum.Add(c.Param(p).Mul(in.To(p.Data().DType())).To(tensor.Float32).Sum())
	}
	return sum.Sub(sum.Detach()).AddScalar(1)
}

func (m *namedDTypes) ZeroGrad() {
	for _, p := range m.Params {
		p.ZeroGrad()
	}
}

func (m *namedDTypes) Step(*tensor.Tensor) {
	for _, p := range m.Params {
		d := p.Data()
		d.CopyFrom(d.To(tensor.Float64).Sub(p.Grad().To(tensor.Float64).DivScalar(8)).To(d.DType()))
	}
}

func dtypesCase(names string, ddp object) liveCase {
	return liveCase{Model: "dtypes " + names, Optimizer: "SGD", Options: object{"lr": 0.125}, DDP: ddp, Steps: []int{6}}
}

// TestDTypesBesidePyTorch: a Go rank among PyTorch's has what PyTorch's ranks have among
// themselves, bit for bit, with parameters of any dtypes.
func TestDTypesBesidePyTorch(t *testing.T) {
	eachTorch(t, 2, func(t *testing.T, torch []*torchRank) {
		mixes := []string{"float32 float64 float32", "float16 float32 float16 float64"}
		if !strings.HasPrefix(torch[0].version, "1.13") { // whose Gloo has no bfloat16
			mixes = append(mixes, "bfloat16", "bfloat16 float32 bfloat16 float64 float16 float32")
		}
		var cases []liveCase
		for _, names := range mixes {
			cases = append(cases, dtypesCase(names, nil), dtypesCase(names, object{"bucket_cap_mb": smallMiB}),
				dtypesCase(names, object{"find_unused_parameters": true}), dtypesCase(names, object{"gradient_as_bucket_view": true}))
		}
		want, errs := liveJob(t, torch, "TT", cases, cases)
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		for _, layout := range []string{"GT", "TG"} {
			got, errs := liveJob(t, torch, layout, cases, cases)
			if err := errors.Join(errs...); err != nil {
				t.Fatal(layout, err)
			}
			for rank := range layout {
				for i, c := range cases {
					if math.IsNaN(float64(want[0][i][0][0])) || fmt.Sprint(got[rank][i]) != fmt.Sprint(want[rank][i]) {
						t.Errorf("%s, %s, rank %d: %v, among PyTorch's ranks %v", c.Model, layout, rank, got[rank][i], want[rank][i])
					}
				}
			}
		}
	})
}

// TestOtherDTypesBesidePyTorch: where the dtypes of ranks differ, the Go rank names a
// parameter and both dtypes.
func TestOtherDTypesBesidePyTorch(t *testing.T) {
	eachTorch(t, 1, func(t *testing.T, torch []*torchRank) {
		old := strings.HasPrefix(torch[0].version, "1.13") // whose Gloo has no bfloat16
		for _, c := range []struct{ torch, ofGo, want string }{
			{"bfloat16 bfloat16", "float32 float32", "params.0 and 1 more: float32 here, bfloat16 or float16 on rank"},
			{"float32 float32", "bfloat16 bfloat16", "params.0 and 1 more: bfloat16 here, float32 on rank"},
			{"float32 float32", "float16 float16", "params.0 and 1 more: float16 here, float32 on rank"},
			{"float64 float64", "float32 float32", "params.0 and 1 more: float32 here, float64 on rank"},
			{"float16 float16 float32", "float32 float32 float32", "params.0 and 1 more: float32 here, bfloat16 or float16 on rank"},
			{"float32 float16 float32", "float32 float32 float32", "params.1: float32 here, of another dtype on rank"},
			{"float32 float32 float32", "float32 float16 float32", "params.1: float16 here, float32 on rank"},
			{"bfloat16 float32", "float32 bfloat16", "params.0: float32 here, bfloat16 or float16 on rank"},
			{"bfloat16", "bfloat16", "the Gloo of PyTorch 1.13 has no collectives of bfloat16"},
		} {
			if own := strings.HasSuffix(c.want, "has no collectives of bfloat16"); own != old && (own || strings.Contains(c.torch+c.ofGo, "bfloat16")) {
				continue
			}
			for _, layout := range []string{"TG", "GT"} {
				t.Run(layout+" "+c.torch+" "+c.ofGo, func(t *testing.T) {
					_, errs := liveJob(t, torch, layout, []liveCase{dtypesCase(c.torch, nil)}, []liveCase{dtypesCase(c.ofGo, nil)})
					g := strings.Index(layout, "G")
					if errs[g] == nil || !strings.Contains(errs[g].Error(), c.want) {
						t.Errorf("the Go rank: %v, want %q", errs[g], c.want)
					}
					t.Logf("Go: %v\nPyTorch: %v", errs[g], errs[1-g])
				})
			}
		}
	})
}

// TestMisreadHalves: rank 0's weights as the other dtype of two bytes are noticed, and
// weights as they are taken.
func TestMisreadHalves(t *testing.T) {
	halves := []tensor.DType{tensor.BFloat16, tensor.Float16}
	b := build(1)
	for _, sent := range halves {
		for _, read := range halves {
			models := []any{newMLP(b), nn.NewLinear(b, 300, 70), nn.NewEmbedding(b, 40, 16)}
			if sent == read {
				models = append(models, nn.NewLayerNorm(b, 200)) // ones
			}
			for _, model := range models {
				var state []nn.NamedTensor
				for _, p := range nn.Parameters(model) {
					bits := p.Data().To(sent)
					p.SetData(tensor.New(tensor.CPU(), read, bits.Shape()...))
					copy(p.Data().Buffer().Data, bits.Buffer().Data)
					state = append(state, nn.NamedTensor{Name: p.Name(), Tensor: p.Data()})
				}
				err := newCoalesced(state, func(s nn.NamedTensor) (string, *tensor.Tensor) { return s.Name, s.Tensor }).misread(0)
				var other *PeerDTypeError
				if sent == read && err != nil || sent != read && (!errors.As(err, &other) || !strings.Contains(err.Error(), fmt.Sprintf("%v here, %v on rank 0", read, sent))) {
					t.Errorf("a %T of %v read as %v: %v", model, sent, read, err)
				}
			}
		}
	}
}
