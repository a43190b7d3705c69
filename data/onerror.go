// SPDX-License-Identifier: Apache-2.0

package data

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
)

// OnError is what a [Loader] does about a sample that cannot be made.
type OnError int

const (
	// Fail makes it a *[SampleError] of Next.
	Fail OnError = iota

	// SkipSample counts it and puts another sample of the same epoch in its place,
	// so that batches keep their size and positions their meaning. Which one is
	// a function of its key alone ([Substitute]): the same on any number of
	// ranks, with any number of workers, and when a run is resumed.
	SkipSample
)

func (o OnError) String() string {
	switch o {
	case Fail:
		return "fail"
	case SkipSample:
		return "skip"
	}
	return fmt.Sprintf("OnError(%d)", int(o))
}

// ParseOnError returns the policy of a name, fail or skip.
func ParseOnError(name string) (OnError, error) {
	for _, o := range []OnError{Fail, SkipSample} {
		if o.String() == name {
			return o, nil
		}
	}
	return Fail, fmt.Errorf("data: no policy %q for samples that cannot be made: there is fail, skip", name)
}

// numSubstitutes is how many samples are tried in the place of one. Were half
// of the samples bad, one in 65,536 of those would end the run.
const numSubstitutes = 16

// SampleError says which sample could not be made, and why.
type SampleError struct {
	Key   Key
	Err   error
	Tried int // samples that could not be made in its place either
}

func (e *SampleError) Error() string {
	also := ""
	if e.Tried > 0 {
		also = fmt.Sprintf(", nor could %d others in its place: the data is bad, or is not there", e.Tried)
	}
	return fmt.Sprintf("data: sample %d of epoch %d cannot be made: %v%s", e.Key.Index, e.Key.Epoch, e.Err, also)
}

func (e *SampleError) Unwrap() error { return e.Err }

// Skip is a sample that could not be made and was replaced.
type Skip struct {
	Key Key   // what was ordered
	By  Key   // what stands in its place
	Err error // why
	row int
}

func (s Skip) String() string {
	return fmt.Sprintf("sample %d of epoch %d was replaced by sample %d: %v", s.Key.Index, s.Key.Epoch, s.By.Index, s.Err)
}

// Substitute is the sample that is tried in the place of one that cannot be
// made, of a dataset of n; try counts from 0, for this may be a bad one too. It
// is spread evenly over the epoch.
func Substitute(key Key, n, try int) Key {
	h := mixKey(Key{key.Epoch, key.Index ^ (try+1)<<40})
	i, _ := bits.Mul64(h, uint64(n))
	return Key{key.Epoch, int(i)}
}

// mixKey is 64 bits that depend on all of a key: the finalizer of SplitMix64
// (Steele, Lea, Flood 2014), once for each of its numbers.
func mixKey(k Key) uint64 {
	return mix64(mix64(uint64(k.Epoch)+0x9e3779b97f4a7c15) + uint64(k.Index))
}

func mix64(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// get makes a sample, or what stands in its place.
func (l *Loader[S, B]) get(ctx context.Context, key Key) (S, Skip, error) {
	sample, err := l.ds.Get(ctx, key)
	if err == nil {
		return sample, Skip{}, nil
	}
	bad := &SampleError{Key: key, Err: err}
	if l.c.OnError == SkipSample {
		for try := range numSubstitutes {
			if ended(ctx, err) {
				break
			}
			by := Substitute(key, l.ds.Len(), try)
			if sample, err = l.ds.Get(ctx, by); err == nil {
				return sample, Skip{Key: key, By: by, Err: bad.Err}, nil
			}
			bad.Tried++
		}
	}
	return sample, Skip{}, bad
}

// ended reports whether an error is the context's and says nothing of the sample.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.Canceled)
}
