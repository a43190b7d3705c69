// SPDX-License-Identifier: Apache-2.0

package vision

import (
	"flag"
	"fmt"
	"testing"

	"github.com/cohort-ml/cohort/data"
)

// photos names the folder of BenchmarkPhotos; testdata/photos.py makes one, and
// testdata/torch_loader.py measures PyTorch's loader on it:
//
//	go test ./data/vision -run '^$' -bench Photos -benchtime 640x -photos DIR
var photos = flag.String("photos", "", "directory of images, one of them a class, for BenchmarkPhotos")

// BenchmarkPhotos is what a step of ImageNet training waits for, end to end:
// read, decode, cut and scale to 224·224, normalise, collate to 32 of float32.
// An iteration is an image.
func BenchmarkPhotos(b *testing.B) {
	if *photos == "" {
		b.Skip("no -photos")
	}
	set, err := OpenFolder(*photos)
	if err != nil {
		b.Fatal(err)
	}
	const batch = 32
	for _, c := range []struct {
		name       string
		transforms []Transform
	}{
		{"train", []Transform{RandomResizedCrop{Width: 224, Height: 224}, RandomFlip{}}},
		{"eval", []Transform{Resize{Short: 256}, CenterCrop{224, 224}}},
	} {
		for _, workers := range []int{0, 2} {
			b.Run(fmt.Sprintf("%s/workers=%d", c.name, workers), func(b *testing.B) {
				sampler, err := data.NewStream(data.StreamConfig{Len: set.Len(), Batch: batch, World: 1, Shuffle: true, Seed: 1})
				if err != nil {
					b.Fatal(err)
				}
				loader, err := data.NewLoader(b.Context(), Apply(set, 1, c.transforms...), sampler, Collate(3, ImageNet), data.LoaderConfig{Workers: workers}, data.LoaderState{})
				if err != nil {
					b.Fatal(err)
				}
				defer loader.Close()
				if _, err := loader.Next(b.Context()); err != nil { // warm up, as the peer does
					b.Fatal(err)
				}
				b.ResetTimer()
				for n := 0; n < b.N; n += batch {
					if _, err := loader.Next(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64((b.N+batch-1)/batch*batch)/b.Elapsed().Seconds(), "images/s")
				b.Log(loader.Stats())
			})
		}
	}
}
