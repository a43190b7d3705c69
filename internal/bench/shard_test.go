// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
)

// TestShard: the numbers that were predicted are those that were measured. (The ranks are one
// process here, so the peak is that of all of them.)
func TestShard(t *testing.T) {
	for _, o := range []ShardOptions{
		{Model: "mlp", Strategy: "single", DType: "float32", Batch: 2, Steps: 1},
		{Model: "gpt", Strategy: "ddp", DType: "float32", Batch: 1, Steps: 1},
		{Model: "mlp", Strategy: "dp", DType: "float32", Batch: 2, Microbatches: 2, Steps: 1},
		{Model: "gpt", Strategy: "zero1", DType: "float32", Batch: 1, Steps: 1},
		{Model: "gpt", Strategy: "diloco:2", DType: "float32", Batch: 1, Steps: 4},
		{Model: "llama", Strategy: "fsdp", DType: "bfloat16", Batch: 1, Steps: 1},
		{Model: "mlp", Strategy: "hsdp", DType: "float32", Batch: 2, Steps: 1},
		{Model: "moe", Strategy: "ddp", DType: "float32", Batch: 2, Microbatches: 2, Steps: 1},
	} {
		err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
			r, err := Shard(ctx, g, o)
			if err != nil || g.Rank() != 0 {
				return err
			}
			s := *r.Sharding
			if s.PredictedBubble == 0 && s.StateBytes != s.PredictedStateBytes || s.SentBytes != s.PredictedSentBytes || s.PeakBytes < s.PredictedPeakBytes {
				t.Errorf("%+v: measured and predicted: %+v", o, s)
			}
			if (s.SentBytes == 0) != (o.Strategy == "single" || o.Strategy == "dp") {
				t.Errorf("%+v: %d bytes were sent", o, s.SentBytes)
			}
			r.Sharding.SentBytes, r.Sharding.PredictedSentBytes, r.Sharding.ExposedMicros = 1, 1, 1 // which may be none
			checkPrinted(t, r, "bench case model transport dtype ranks threads batch params median_us min_us gflop_per_s "+
				"state_bytes predicted_state_bytes peak_bytes predicted_peak_bytes sent_bytes predicted_sent_bytes exposed_us predicted_us")
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	for _, o := range []ShardOptions{
		{Model: "llama", Strategy: "tp", DType: "float32", Batch: 2, Steps: 1},
		{Model: "moe", Strategy: "ep", DType: "float32", Batch: 1, Steps: 1},
		{Model: "gpt", Strategy: "pp:zbv", DType: "float32", Batch: 4, Steps: 1},
		{Model: "gpt", Strategy: "cp2.tp1", DType: "float32", Batch: 1, Steps: 1},
	} {
		err := dist.Spawn(t.Context(), 2, func(ctx context.Context, g *dist.Group) error {
			r, err := Shard(ctx, g, o)
			if s := r.Sharding; err == nil && (s.SentBytes == 0 || s.PredictedSentBytes >= 0 && s.SentBytes != s.PredictedSentBytes || s.PredictedBubble == 0 && s.StateBytes != s.PredictedStateBytes || s.PredictedMicros <= 0 || (s.Bubble > 0) != (s.PredictedBubble > 0)) {
				t.Errorf("%+v: %+v", o, s)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for want, o := range map[string]ShardOptions{
		`no model "cnn": want one of gpt, mlp, llama, moe`:                          {Model: "cnn", Strategy: "ddp", DType: "float32", Steps: 1},
		"the model gpt has no experts for the axis ep: take moe":                    {Model: "gpt", Strategy: "fsdp2.ep2", DType: "float32", Steps: 1},
		"the model mlp has no sequence for the axis cp: take gpt":                   {Model: "mlp", Strategy: "cp", DType: "float32", Steps: 1},
		"the model mlp has no plan of tensor parallelism for the axis tp: take gpt": {Model: "mlp", Strategy: "tp", DType: "float32", Steps: 1},
		"want diloco:H, where H is":                                                 {Model: "gpt", Strategy: "diloco", DType: "float32", Steps: 1},
		"4 steps are measured with an exchange every 3":                             {Model: "gpt", Strategy: "diloco:3", DType: "float32", Steps: 4},
		`no strategy "zeus"`:                                                        {Model: "gpt", Strategy: "zeus", DType: "float32", Steps: 1},
		`no dtype "int8"`:                                                           {Model: "gpt", Strategy: "ddp", DType: "int8", Steps: 1},
		"0 steps":                                                                   {Model: "gpt", Strategy: "ddp", DType: "float32"},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v gave %v, want %q", o, err, want)
		}
	}
}
