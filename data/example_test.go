// SPDX-License-Identifier: Apache-2.0

package data_test

import (
	"context"
	"fmt"
	"log"

	"github.com/cohort-ml/cohort/data"
)

// A rank's way from a text to batches.
func Example() {
	ctx := context.Background()
	const rank, world = 0, 2
	corpus, err := data.OpenCorpus(ctx, ".") // "" is the standard library
	if err != nil {
		log.Print(err)
		return
	}
	tok, err := data.TrainTokenizer(ctx, corpus.Train, 320)
	if err != nil {
		log.Print(err)
		return
	}
	windows, err := data.NewWindows(corpus.Train, tok, 64)
	if err != nil {
		log.Print(err)
		return
	}
	order, err := data.NewStream(data.StreamConfig{Len: windows.Len(), Batch: 4, Rank: rank, World: world, Shuffle: true, Seed: 1})
	if err != nil {
		log.Print(err)
		return
	}
	loader, err := data.NewLoader(ctx, windows, order, data.CollateTokens, data.LoaderConfig{}, data.LoaderState{})
	if err != nil {
		log.Print(err)
		return
	}
	defer loader.Close()
	for range 2 {
		batch, err := loader.Next(ctx)
		if err != nil {
			log.Print(err)
			return
		}
		fmt.Println(batch.Rows, batch.Length, len(batch.Inputs), len(batch.Targets), loader.State().Position)
	}
	// Output:
	// 4 64 256 256 8
	// 4 64 256 256 16
}
