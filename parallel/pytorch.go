// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/dist"
)

// PyTorchOptions say how the other ranks' DistributedDataParallel was made;
// the zero value is its defaults. What is not here goes by the options that any
// DDP has: [WithLocalBuffers] for broadcast_buffers=False, [WithBucketBytes] for
// bucket_cap_mb (from 2.4 on an explicit cap is that of the first bucket too, which has
// 1 MiB before).
type PyTorchOptions struct {
	// FindUnused is find_unused_parameters: passes need not reach every
	// parameter, and one that no rank has reached keeps its gradient.
	FindUnused bool
	// StaticGraph is static_graph: every pass reaches the parameters that the
	// first has reached.
	StaticGraph bool
	// SkipInitSync is init_sync=False: NewDDP neither compares the models nor
	// sends rank 0's.
	SkipInitSync bool
	// Version is that of the other ranks, by default what the group has found out
	// ([dist.Group.PyTorchVersion]). It matters with [WithLocalBuffers] alone:
	// "1.13" sends buffers when a DDP is made, and at the end of join, even so.
	Version string
	// InitBuffers sends buffers when a DDP is made, with [WithLocalBuffers] too:
	// forward_sync_buffers=False, which PyTorch has from 2.15 on.
	InitBuffers bool
}

// WithPyTorch makes a DDP keep step with PyTorch's DistributedDataParallel, so that
// the ranks of a group may be of either kind: it issues the collectives that
// PyTorch's issues, in its order and with its layouts, and none besides. Ranks
// of one group need the same parameters in the same order (a module's own ones
// before those of its children, as named_parameters has them) and the same
// options. TORCH_DISTRIBUTED_DEBUG must not be DETAIL on PyTorch's ranks, which
// adds collectives. Where they register bf16_compress_hook or fp16_compress_hook, give
// [WithHook] with [BF16Hook] or [FP16Hook]; they must register no other hook.
//
// A gradient is multiplied by 1/ranks when it is copied into its bucket, and the
// sums are copied back: gradients of a pass that is not synchronised are whole,
// unlike those of a DDP without this option.
//
// Every Forward may broadcast buffers, in evaluation too: as in PyTorch, the
// first evaluation after a training pass does, so all ranks must run it.
func WithPyTorch(o PyTorchOptions) DDPOption {
	return func(all *ddpOptions) {
		all.newReducer = func(ctx context.Context, model any, group *dist.Group, all *ddpOptions) (reducer, error) {
			o.StaticGraph = o.StaticGraph || all.static
			return newPyTorchReducer(ctx, model, group, all, o)
		}
	}
}

// besidePyTorch adds to an error of a DDP without the option [WithPyTorch] what may be wrong,
// where another rank has sent what does not belong to this one's call.
func besidePyTorch(err error) error {
	return outOfStep(err, "where other ranks run PyTorch's DistributedDataParallel, NewDDP needs the option parallel.WithPyTorch")
}

// What may differ between ranks whose collectives do.
const (
	sameState   = "have all ranks' models the same buffers and frozen parameters, in the same order, and all DDPs the same broadcast_buffers (WithLocalBuffers)?"
	sameOptions = "have all ranks' DDPs the same find_unused_parameters (FindUnused), static_graph (StaticGraph), broadcast_buffers (WithLocalBuffers) and bucket_cap_mb (WithBucketBytes)?"
)

// outOfStep adds to an error what may be wrong, where another rank has sent what does
// not belong to this one's call.
func outOfStep(err error, why string) error {
	if dtypes := (*PeerDTypeError)(nil); errors.As(err, &dtypes) && dtypes.There != "" {
		return err
	}
	if wire := (*dist.WireError)(nil); errors.As(err, &wire) {
		return fmt.Errorf("%w; %s", err, why)
	}
	return err
}

// UnusedError says that a synchronised pass did not reach parameters, which a
// DDP of PyTorch's kind must know of beforehand.
type UnusedError struct {
	Params []string
	Static bool // the first pass reached them
}

func (e *UnusedError) Error() string {
	what := strings.Join(e.Params[:min(len(e.Params), 5)], ", ")
	if n := len(e.Params) - 5; n > 0 {
		what += fmt.Sprintf(" and %d more", n)
	}
	if e.Static {
		return fmt.Sprintf("ddp: the pass did not reach %s, which the first pass did, although StaticGraph says that all passes are alike", what)
	}
	return fmt.Sprintf("ddp: the pass did not reach %s; the other ranks wait for these gradients. Set FindUnused (find_unused_parameters=True) on every rank, or freeze them everywhere", what)
}
