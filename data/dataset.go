// SPDX-License-Identifier: Apache-2.0

// Package data feeds a model: text from files, samples in an order that does
// not depend on chance, batches made ahead of time.
//
// The pieces, from the disk up:
//
//   - [OpenCorpus] finds the files and parts them into two [Text]s, for
//     training and for validation. A Text is read where it lies, on demand.
//   - [Windows] makes a [Dataset] of a Text: sample i is a window of tokens, a
//     pure function of (epoch, i). [Validation] is the fixed set of windows
//     that an evaluation covers.
//   - [EncodeShards] encodes a corpus once, to shards of tokens in a directory;
//     [OpenShards] opens them and [ShardWindows] makes the Dataset.
//   - A [Sampler] says which samples are in a batch of this rank: [Stream],
//     whose order does not depend on the number of ranks, and PyTorch's
//     [DistributedSampler], [RandomSampler] and [SequentialSampler]. Samplers are
//     pure functions of a position, the number of samples that all ranks have
//     taken since the start of training. That is why the state of a run is one
//     number, why it resumes exactly in the middle of an epoch, and why nothing
//     needs to be replayed.
//   - [Loader] runs a sampler over a dataset: its workers make batches in the
//     background, a bounded number ahead, and Next delivers them in order. What
//     is delivered is a function of the order alone, not of the workers: a
//     sample that cannot be made is an error, or replaced by a function of its
//     key ([SkipSample]). [LoaderStats] says who waits for whom.
//   - [OrderLog] writes down what a rank was trained on, step by step, and
//     [CheckOrder] proves from the logs of all ranks, through crashes and on
//     other numbers of ranks, that it was what the order says.
//
// Datasets and samplers are immutable after they are made and may be shared by
// goroutines. A Loader and an OrderLog belong to one goroutine. Nothing here
// knows tensors: a batch of tokens is []int64, and whoever trains wraps it.
package data

import (
	"context"
	"fmt"
)

// Key names one sample: sample Index of a dataset as it is in an epoch. What
// must change from epoch to epoch (where windows start, how an image is cut)
// is a function of the key, so that any sample can be made again.
type Key struct {
	Epoch int
	Index int
}

// Dataset is a number of samples that can be read in any order. Get must be
// safe for concurrent use and return the same sample for the same key.
type Dataset[S any] interface {
	Len() int
	Get(ctx context.Context, key Key) (S, error)
}

// FromSlice is the dataset of the elements of s, the same in every epoch.
func FromSlice[S any](s []S) Dataset[S] { return sliceDataset[S](s) }

type sliceDataset[S any] []S

func (d sliceDataset[S]) Len() int { return len(d) }

func (d sliceDataset[S]) Get(_ context.Context, key Key) (S, error) {
	if key.Index < 0 || key.Index >= len(d) {
		var none S
		return none, fmt.Errorf("data: sample %d of a dataset of %d", key.Index, len(d))
	}
	return d[key.Index], nil
}

// FromFunc is the dataset of n samples that get makes. It must be safe for
// concurrent use and a pure function of the key.
func FromFunc[S any](n int, get func(ctx context.Context, key Key) (S, error)) Dataset[S] {
	return funcDataset[S]{n, get}
}

type funcDataset[S any] struct {
	n   int
	get func(context.Context, Key) (S, error)
}

func (d funcDataset[S]) Len() int { return d.n }

func (d funcDataset[S]) Get(ctx context.Context, key Key) (S, error) { return d.get(ctx, key) }
