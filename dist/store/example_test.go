// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/transport"
)

// Rank 0 serves the store and uses it in memory; rank 1 connects. Each
// publishes where it can be reached and waits for the other's address.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	token := transport.NewToken() // a job has it from transport.TokenFromEnv

	port, err := transport.Listen("127.0.0.1:0", token)
	if err != nil {
		log.Fatal(err)
	}
	defer port.Close()
	rank0 := store.NewMemory()
	defer store.Serve(port, rank0).Close()

	rank1, err := store.Connect(ctx, port.Addr(), token)
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
