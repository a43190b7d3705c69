// SPDX-License-Identifier: Apache-2.0

package train_test

import (
	"context"
	"fmt"
	"os"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/nn"
	"github.com/cohort-ml/cohort/train"
)

// A program tells the class of an image with what `cohort train vision` has
// trained, or [train.Vision].
func ExampleOpenClassifier() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "vision")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	cfg := train.DefaultVision()
	cfg.Out, cfg.Model, cfg.Epochs = dir, "mlp", 15
	err = dist.Spawn(ctx, 1, func(ctx context.Context, group *dist.Group) error {
		return train.Vision(ctx, group, cfg, nil, train.Discard)
	})
	if err != nil {
		panic(err)
	}

	ck, _, err := checkpoint.Latest(ctx, storage.Dir(dir))
	if err != nil {
		panic(err)
	}
	m, err := train.OpenClassifier(ck)
	if err != nil {
		panic(err)
	}
	// Images of any origin are a vision.Sample each, of m.Config.Size pixels a side:
	// vision.Resize and vision.CenterCrop see to that.
	_, images, err := vision.Digits()
	if err != nil {
		panic(err)
	}
	image, err := images.Get(ctx, data.Key{Index: 3})
	if err != nil {
		panic(err)
	}
	collate := vision.Collate(m.Config.Channels, vision.Normalize{Mean: m.Config.Mean, Std: m.Config.Std})
	batch, err := collate([]vision.Sample{image})
	if err != nil {
		panic(err)
	}
	c := nn.Evaluation(ctx)
	defer c.Close()
	class := m.Logits(c, m.Model, batch).ArgMax(1).Int64s()[0]
	fmt.Printf("read as %s, and it is %s\n", m.Config.Classes[class], m.Config.Classes[images.Label(3)])
	// Output: read as 8, and it is 8
}

// A program scores rows with what `cohort train rec` has trained, or [train.Rec].
func ExampleOpenRecommender() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "rec")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	cfg := train.DefaultRec()
	cfg.Out, cfg.Rows, cfg.Epochs = dir, 2000, 1
	err = dist.Spawn(ctx, 1, func(ctx context.Context, group *dist.Group) error {
		return train.Rec(ctx, group, cfg, nil, train.Discard)
	})
	if err != nil {
		panic(err)
	}

	ck, _, err := checkpoint.Latest(ctx, storage.Dir(dir))
	if err != nil {
		panic(err)
	}
	r, err := train.OpenRecommender(ck)
	if err != nil {
		panic(err)
	}
	s := r.Config.Schema
	fmt.Println(s.Categories, s.Numbers)
	row := table.Row{Numbers: []float32{41, 9.5}}
	for _, value := range []string{"17", "80", "20", "phone"} {
		row.Categories = append(row.Categories, s.Bucket([]byte(value)))
	}
	batch, err := r.Config.Scale.Collate([]table.Row{row})
	if err != nil {
		panic(err)
	}
	c := nn.Evaluation(ctx)
	defer c.Close()
	p := r.Logits(c, r.Model, batch).Sigmoid().Item()
	fmt.Println("likely at all:", p > 0.01 && p < 0.99)
	// Output:
	// [user_id item_id hour device] [age price]
	// likely at all: true
}
