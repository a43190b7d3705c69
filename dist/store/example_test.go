// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
)

// Rank 0 serves the store and uses it in memory; rank 1 connects. Each
// publishes where it can be reached and waits for the other's address.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	token := "5d8d1ad5c5a0c3f4f0b8e0d7c1f3a29e6f1f0b7e9a4d3c2b1a09f8e7d6c5b4a3" // from cohort token

	server, err := store.Listen("127.0.0.1:0", token)
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rank0 := server.Store()

	rank1, err := store.Dial(ctx, server.Addr(), token)
	if err != nil {
		log.Fatal(err)
	}
	defer rank1.Close()

	met := make(chan string)
	go func() {
		peer, err := rank1.Get(ctx, "addr/0") // waits
		if err != nil {
			log.Fatal(err)
		}
		met <- string(peer)
	}()
	if err := rank0.Set(ctx, "addr/0", []byte("10.0.0.1:4711")); err != nil {
		log.Fatal(err)
	}
	fmt.Println("rank 0 is at", <-met)

	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = rank0.Get(short, "addr/1")
	fmt.Println(err)
	// Output:
	// rank 0 is at 10.0.0.1:4711
	// store: get "addr/1" at memory: not set by anybody before the wait ended: context deadline exceeded
}
