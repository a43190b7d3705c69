// SPDX-License-Identifier: Apache-2.0

package nn

import (
	"slices"

	"github.com/cohort-ml/cohort/tensor"
)

// KVCache keeps the keys and values of the positions that a model has seen, so
// that a pass needs to compute the new ones alone: generating a token costs as
// much as its attention to the others, not as another pass over them. A carrier
// with [WithKVCache] takes it to the attention modules, which append to it.
//
//	cache := nn.NewKVCache(512)
//	first, err := step(prompt, cache)    // c := nn.Evaluation(ctx, nn.WithKVCache(cache)); c.Call(model, ids)
//	second, err := step(first, cache)    // one token more
//
// It belongs to one sequence, or one batch of sequences of one length, and to
// one goroutine, and it is for passes without gradients. A pass that failed half
// way leaves it unusable but for [KVCache.Reset].
type KVCache struct {
	capacity int
	layers   map[any]*cachedHeads
}

// cachedHeads are the keys and values of one module, [batch, capacity, heads,
// dim], of which length positions are filled.
type cachedHeads struct {
	key, value *tensor.Tensor
	length     int
}

// holds reports whether keys of a dtype fit, with the shape of the whole cache.
func (l *cachedHeads) holds(dtype tensor.DType, whole []int) bool {
	return l.key.DType() == dtype && slices.Equal(l.key.Shape(), whole)
}

// NewKVCache returns an empty cache for at most capacity positions.
func NewKVCache(capacity int) *KVCache {
	return &KVCache{capacity: capacity, layers: make(map[any]*cachedHeads)}
}

// WithKVCache makes the attention modules of the pass see the positions of the
// passes before it, and append theirs.
func WithKVCache(k *KVCache) CtxOption { return func(c *Ctx) { c.cache = k } }

// KVCache returns the cache of the pass, nil if it has none.
func (c *Ctx) KVCache() *KVCache { return c.cache }

// Past returns how many positions a module has appended: before it appends
// those of this pass, the place of the first of them. A nil cache has none.
func (k *KVCache) Past(module any) int {
	if k == nil || k.layers[module] == nil {
		return 0
	}
	return k.layers[module].length
}

// Len returns how many positions all modules have appended: at the beginning of
// a pass, those of the passes before it. A nil cache has none.
func (k *KVCache) Len() int {
	if k == nil || len(k.layers) == 0 {
		return 0
	}
	n := k.capacity
	for _, l := range k.layers {
		n = min(n, l.length)
	}
	return n
}

// Cap returns how many positions the cache has room for.
func (k *KVCache) Cap() int { return k.capacity }

// Reset empties the cache. Its memory is used again.
func (k *KVCache) Reset() {
	for _, l := range k.layers {
		l.length = 0
	}
}

// forShapes returns a cache on tensor.Meta that is as full.
func (k *KVCache) forShapes() *KVCache {
	if k == nil {
		return nil
	}
	d := NewKVCache(k.capacity)
	like := func(t *tensor.Tensor) *tensor.Tensor { return tensor.New(tensor.Meta, t.DType(), t.Shape()...) }
	for module, l := range k.layers {
		d.layers[module] = &cachedHeads{key: like(l.key), value: like(l.value), length: l.length}
	}
	return d
}

// Append adds keys and values of a module, [batch, time, heads, dim] each, and
// returns all of its, [batch, past + time, heads, dim]: views of the cache, to
// be used before the next call. It panics with a *tensor.Error when there is no
// room.
func (k *KVCache) Append(module any, key, value *tensor.Tensor) (keys, values *tensor.Tensor) {
	shape := key.Shape()
	wrong := func(msg string) {
		panic(&tensor.Error{
			Op: "kv cache", Names: []string{key.Name(), value.Name()}, Shapes: [][]int{shape, value.Shape()},
			DTypes: []tensor.DType{key.DType(), value.DType()}, Msg: msg,
		})
	}
	if len(shape) != 4 || !slices.Equal(shape, value.Shape()) {
		wrong("wants keys and values of one shape, [batch, time, heads, dim]")
	}
	if key.NeedsGrad() || value.NeedsGrad() {
		wrong("is for passes without gradients: those of the positions before this pass would be lost")
	}
	l := k.layers[module]
	whole := slices.Clone(shape)
	whole[1] = k.capacity
	switch {
	case l == nil || l.length == 0 && !l.holds(key.DType(), whole):
		l = &cachedHeads{key: tensor.New(key.Device(), key.DType(), whole...), value: tensor.New(key.Device(), key.DType(), whole...)}
		k.layers[module] = l
	case !l.holds(key.DType(), whole):
		wrong("the cache holds another batch, other heads or another dtype; Reset it first")
	}
	if l.length+shape[1] > k.capacity {
		wrong("the cache has no room for them; make it larger, or Reset it and begin with the last positions")
	}
	l.key.Narrow(1, l.length, shape[1]).CopyFrom(key)
	l.value.Narrow(1, l.length, shape[1]).CopyFrom(value)
	l.length += shape[1]
	tape := func(t *tensor.Tensor) *tensor.Tensor {
		if key.Tape() != nil {
			t = key.Tape().Const(t)
		}
		return t.Narrow(1, 0, l.length)
	}
	return tape(l.key), tape(l.value)
}
