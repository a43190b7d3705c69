// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/memlimit"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/tensor"
)

// Bytes of a parameter. AdamW: the weight, its gradient and two averages. Adagrad:
// the weight and one sum, because the gradients of tables have only a few rows.
const (
	adamBytes    = 16
	adagradBytes = 8
)

// bound is a limit of memory with the number of this run's ranks that share it.
type bound struct {
	memlimit.Limit
	ranks int
}

// boundsHere returns the limits of this process as those of so many ranks on this machine.
func boundsHere(ranks int) (all []bound) {
	for _, l := range memlimit.Limits() {
		b := bound{l, 1}
		if l.Scope != "" {
			b.ranks = ranks
		}
		all = append(all, b)
	}
	return all
}

// modelState is what the state of a model takes: parameters, gradients and what the
// optimizer keeps for them.
type modelState struct {
	params int
	held   float64 // parameters that a rank holds, if it has no shards: the other axes cut the model
	bytes  float64 // of the state of these
	ranks  int     // of the run that there are for each part that the other axes make
	parts  int     // that they make
}

// need returns how many bytes the ranks that share a bound take, if each holds a part of
// so many. A rank maps the shards of the weights that the others of its machine have.
func (s modelState) need(b bound, shards int) float64 {
	one := s.bytes / float64(shards)
	if b.Mapped {
		const weight = 4
		one += weight * s.held * float64(shards-1) / float64(shards)
	}
	return one * float64(b.ranks)
}

// tightest returns the bound that the ranks exceed most, false if they keep to all.
func (s modelState) tightest(bounds []bound, shards int) (worst bound, exceeded bool) {
	most := 1.0
	for _, b := range bounds {
		if over := s.need(b, shards) / math.Max(float64(b.Room()), 1); over > most {
			worst, most, exceeded = b, over, true
		}
	}
	return worst, exceeded
}

// advice says with how many shards, if any, the state keeps to the bounds.
func (s modelState) advice(bounds []bound, shards int) string {
	for n := shards + 1; n <= s.ranks; n++ {
		if _, exceeded := s.tightest(bounds, n); !exceeded && s.ranks%n == 0 {
			return fmt.Sprintf("shard it over %d ranks (--fsdp %d), make it smaller, or use fewer --ranks", n, n)
		}
	}
	const mostRanks = 1024
	for n := s.ranks + 1; n <= mostRanks; n++ {
		more := slices.Clone(bounds)
		for i := range more {
			if more[i].Scope != "" { // the new ones are where the others are
				more[i].ranks = max(1, more[i].ranks*n/s.ranks)
			}
		}
		if _, exceeded := s.tightest(more, n); !exceeded {
			return fmt.Sprintf("shard it over %d ranks (--fsdp %d --ranks %d), or make it smaller", n, n, n*s.parts)
		}
	}
	return "make it smaller, or shard it over the ranks of several machines (--fsdp)"
}

// check returns an error if the state does not keep to the bounds.
func (s modelState) check(bounds []bound, shards int) error {
	b, exceeded := s.tightest(bounds, shards)
	if !exceeded {
		return nil
	}
	whose, used := "on each rank", ""
	if b.ranks > 1 {
		whose = fmt.Sprintf("on %d ranks", b.ranks)
	}
	if b.Used > 0 {
		used = fmt.Sprintf(", of which %s are used", byteText(float64(b.Used)))
	}
	return fmt.Errorf("out of memory: the state of a model of %.3g parameters (weights, gradients, optimizer) takes %s %s, and there are %s%s (%s): %s",
		float64(s.params), byteText(s.need(b, shards)), whose, byteText(float64(b.Bytes)), used, b.Source, s.advice(bounds, shards))
}

func byteText(n float64) string {
	return fmt.Sprint(data.ByteSize(int64(math.Min(n, math.MaxInt64/2))))
}

// stateOf returns the size of a model's state in a recipe. Tensor parallelism and the stages of
// a pipeline cut a model evenly at best, and expert parallelism cuts experts.
func stateOf(task string, model any, ranks int, c MeshConfig) modelState {
	each := adamBytes
	if task == "rec" {
		each = adagradBytes
	}
	if c.ZeRO1 {
		state := each / 2 // of the optimizer
		each = each - state + (state+ranks-1)/max(1, ranks)
	}
	experts := 0
	for _, m := range nn.Modules(model) {
		if e, ok := m.(*nn.Experts); ok {
			experts += nn.NumParams(e)
		}
	}
	n, cut := nn.NumParams(model), float64(max(c.TP, 1)*max(c.PP, 1))
	held := (float64(n-experts) + float64(experts)/float64(max(c.EP, 1))) / cut
	parts := c.copies() * max(c.EP, 1)
	return modelState{n, held, held * float64(each), max(1, ranks/parts), parts}
}

// checkMemory reports a model whose state does not fit the memory that the ranks of this
// machine may use, before they are started. The model is made on the meta device.
func checkMemory(task string, model any, c SharedConfig) error {
	if err := stateOf(task, model, c.Ranks, c.MeshConfig).check(boundsHere(max(1, c.Ranks)), max(1, c.FSDP)); err != nil {
		return fmt.Errorf("train %s: %w", task, err)
	}
	return nil
}

// rankBounds returns the limits of this rank, each with the number of ranks that share it. All
// ranks call it.
func rankBounds(ctx context.Context, group *dist.Group) (bounds []bound, err error) {
	const numScopes = 16
	mine := make([]int64, numScopes)
	host, err := os.Hostname()
	if err != nil {
		host = group.Node()
	}
	for i, l := range memlimit.Limits() {
		if bounds = append(bounds, bound{l, 1}); i < numScopes && l.Scope != "" {
			h := fnv.New64a()
			fmt.Fprint(h, host, " ", l.Scope)
			mine[i] = int64(h.Sum64() | 1)
		}
	}
	all := tensor.New(tensor.CPU(), tensor.Int64, numScopes*group.Size())
	if err := group.AllGather(ctx, all, tensor.FromInt64(mine)); err != nil {
		return nil, fmt.Errorf("compare the memory of the ranks: %w", err)
	}
	for i, scope := range mine[:min(len(bounds), numScopes)] {
		if scope != 0 {
			bounds[i].ranks = 0
			for _, other := range all.Int64s() {
				if other == scope {
					bounds[i].ranks++
				}
			}
		}
	}
	return bounds, nil
}

// checkRanksMemory is checkMemory on the ranks: each knows its own limits, and with whom it
// shares them. If one lacks memory, all return its error.
func checkRanksMemory(ctx context.Context, task string, model any, c SharedConfig, group *dist.Group) error {
	bounds, err := rankBounds(ctx, group)
	if err != nil {
		return fmt.Errorf("train %s: %w", task, err)
	}
	var text []byte
	if err := stateOf(task, model, group.Size(), c.MeshConfig).check(bounds, max(1, c.FSDP)); err != nil {
		text = []byte(fmt.Sprintf("train %s: rank %d: %v", task, group.Rank(), err))
	}
	const mostText = 1024
	told := make([]uint8, mostText)
	copy(told, text)
	texts := tensor.New(tensor.CPU(), tensor.Uint8, mostText*group.Size())
	if err := group.AllGather(ctx, texts, tensor.FromUint8(told)); err != nil {
		return fmt.Errorf("train %s: compare the memory of the ranks: %w", task, err)
	}
	for t := range slices.Chunk(texts.Buffer().Data, mostText) {
		if t[0] != 0 {
			return errors.New(strings.TrimRight(string(t), "\x00"))
		}
	}
	runtime.KeepAlive(texts)
	return nil
}

// withAdvice calls f, and says what to do if there was no memory for a tensor.
func withAdvice(task string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			e, ok := v.(error)
			if !ok || !errors.Is(e, tensor.ErrOutOfMemory) {
				panic(v)
			}
			err = fmt.Errorf("%s: %w", trainOf(task), e)
		}
		if errors.Is(err, tensor.ErrOutOfMemory) {
			err = fmt.Errorf("%w; shard the state of the model over more ranks (--fsdp), or run fewer samples in a pass (a smaller --batch, with --accumulate)", err)
		}
	}()
	return f()
}
