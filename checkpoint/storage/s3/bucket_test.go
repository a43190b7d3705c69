// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/storage/s3/s3test"
	"github.com/cohort-ml/cohort/checkpoint/storage/storagetest"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// mustOpen opens an address and makes it impatient.
func mustOpen(t testing.TB, address string) *Bucket {
	t.Helper()
	b, err := Open(address)
	if err != nil {
		t.Fatal(err)
	}
	b.pauses.first, b.pauses.last = 2*time.Millisecond, 100*time.Millisecond
	b.pauses.numAttempts = 14
	b.intentLife = 2 * time.Second // those of the killed, and those delivered late, count so long
	t.Cleanup(b.client.CredContext().Client.CloseIdleConnections)
	return b
}

var numPrefixes atomic.Int32

// places returns what storagetest.Run opens: a new prefix for each part.
func places(s *s3test.Server, params ...string) func(t *testing.T) storagetest.Place {
	return func(t *testing.T) storagetest.Place {
		prefix := fmt.Sprintf("some/run%d", numPrefixes.Add(1))
		return func() storage.Storage { return mustOpen(t, s.Address(prefix, append(params, "part=5MiB")...)) }
	}
}

func pythons() []string { return filepath.SplitList(os.Getenv("COHORT_TEST_PYTHONS")) }

// TestConformance: buckets of both servers do what every storage does, also where
// a tenth of the requests fails, and where the server ignores conditions.
func TestConformance(t *testing.T) {
	s3test.Credentials(t)
	seed := seeded.Of(t)
	for name, start := range map[string]func(t testing.TB) *s3test.Server{
		"gofakes3": s3test.GoFake,
		"moto":     func(t testing.TB) *s3test.Server { return s3test.Moto(t, pythons()...) },
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			t.Run("plain", func(t *testing.T) { storagetest.Run(t, places(s)) })
			if testing.Short() {
				return
			}
			t.Run("faults", func(t *testing.T) {
				p := s3test.NewProxy(t, s, seed, s3test.Faults{Rate: 0.1, Delay: 5 * time.Millisecond})
				storagetest.Run(t, places(&p.Server))
				t.Log(p)
			})
			t.Run("no conditions", func(t *testing.T) {
				p := s3test.NewProxy(t, s, seed, s3test.Faults{Rate: 0.1, Delay: 5 * time.Millisecond, IgnoreConditions: true})
				open := places(&p.Server)
				storagetest.Run(t, func(t *testing.T) storagetest.Place {
					place := open(t)
					return func() storage.Storage { return storage.Under(place(), "best") }
				})
				t.Log(p)
			})
		})
	}
}

// TestMain: no test leaves a goroutine, and none waits for the client's own pause after
// a request that it does not repeat.
func TestMain(m *testing.M) {
	minio.DefaultRetryUnit = time.Millisecond
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}
