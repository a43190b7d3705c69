// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/storage/s3"
	"github.com/cohort-ml/cohort/checkpoint/storage/s3/s3test"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// TestCrashesOnS3: jobs save into a bucket over a network that refuses, delays, loses, cuts and
// repeats requests. A job is killed in the middle of a save, or a second job saves the same steps.
// Each time the newest checkpoint loads, is the one before or a new one, and has the values of
// the job that has committed it.
//
//	go test ./checkpoint/trials -run TestCrashesOnS3 -trials 200 -v
func TestCrashesOnS3(t *testing.T) {
	s3test.Credentials(t)
	seed := seeded.Of(t)
	server := s3test.GoFake(t)
	count := make(map[string]int)
	trials(t, 3, func(i int) error {
		r := rand.New(rand.NewPCG(seed<<32+uint64(i), 7))
		proxy := s3test.NewProxy(t, server, seed<<32+uint64(i), s3test.Faults{
			Rate: pick(r, 0, 0.1, 0.2), Delay: pick(r, 0, 5*time.Millisecond), IgnoreConditions: chance(r, 0.5),
		})
		what, err := crashOnS3(t, r, seed<<32+uint64(i), proxy, fmt.Sprint("trial-", i))
		count[what]++
		if err != nil {
			return fmt.Errorf("%s, %v: %w", what, proxy, err)
		}
		return nil
	})
	for _, what := range sortedKeys(count) {
		t.Logf("%5d %s", count[what], what)
	}
}

func crashOnS3(t *testing.T, r *rand.Rand, seed uint64, proxy *s3test.Proxy, prefix string) (what string, err error) {
	open := func(int) storage.Storage {
		b, err := s3.Open(proxy.Address(prefix))
		if err != nil {
			panic(err)
		}
		return b
	}
	c := drawCrash(t, seed)
	c.numBefore, c.keep = r.IntN(3), pick(r, 0, 2)
	for step := 1; step <= c.numBefore; step++ {
		if err := c.saves(t, []int{step}, open); err != nil {
			return "before", fmt.Errorf("save step %d: %w", step, err)
		}
	}
	next := c.numBefore + 1
	saved := make([]error, 1)
	if chance(r, 0.5) {
		what = "two jobs: "
		saved = make([]error, 2)
		var jobs sync.WaitGroup
		for k := range saved {
			other := *c
			other.async = chance(r, 0.5)
			jobs.Go(func() { saved[k] = other.saves(t, []int{next}, open) })
		}
		jobs.Wait()
	} else {
		what = "one rank killed: "
		v := &victim{rank: r.IntN(max(1, numRanks(c.axes))), after: r.IntN(20), dead: make(chan struct{}), released: make(chan struct{})}
		c.victim = v
		saved[0] = c.saves(t, []int{next}, func(rank int) storage.Storage {
			if rank == v.rank {
				return killed{open(rank), v}
			}
			return open(rank)
		})
		close(v.released)
		v.running.Wait()
		c.victim = nil
	}
	proxy.Settle() // what was sent and given up has arrived, or not
	numSaved, inDoubt := 0, false
	for _, err := range saved {
		if err == nil {
			numSaved++
		}
		inDoubt = inDoubt || errors.As(err, new(*storage.DoubtError))
		if len(saved) == 2 && err != nil && !errors.Is(err, fs.ErrExist) && !errors.As(err, new(*checkpoint.RankError)) && !errors.As(err, new(*checkpoint.SaveError)) {
			return what, err
		}
	}
	found, err := c.newestIn(t, open(0))
	switch {
	case err != nil:
		return what, fmt.Errorf("saved %v: %w", saved, err)
	case numSaved == 2:
		return what, errors.New("both jobs have saved the same step")
	case found != next && (found != c.numBefore || numSaved > 0):
		return what, fmt.Errorf("the newest checkpoint is step %d, and the save of step %d returned %v", found, next, saved)
	case found == next:
		what += "the new one"
	default:
		what += "the old one"
	}
	if err := c.saves(t, []int{next + 1}, open); err != nil {
		return what, fmt.Errorf("the next save: %w", err)
	}
	if found, err := c.newestIn(t, open(0)); err != nil || found != next+1 {
		return what, fmt.Errorf("step %d after the save of step %d: %w", found, next+1, err)
	}
	return what, nil
}

// TestSilentServer: a server that does not answer has not damaged a checkpoint. Nothing is set
// aside, and the checkpoint is there when the server answers again.
func TestSilentServer(t *testing.T) {
	s3test.Credentials(t)
	server := s3test.GoFake(t)
	c := drawCrash(t, 11)
	c.axes, c.async = nil, false
	b, err := s3.Open(server.Address("silent"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.saves(t, []int{1, 2}, func(int) storage.Storage { return b }); err != nil {
		t.Fatal(err)
	}
	h, err := hold(c.draws, make([]lie, len(c.draws)), nil, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"manifest.json", ".safetensors"} {
		_, err = checkpoint.Load(t.Context(), nil, silent{b, file}, checkpoint.State{Sections: h.sections()})
		if err == nil || errors.As(err, new(*checkpoint.DamagedError)) {
			t.Errorf("%s is not answered: %v", file, err)
		}
	}
	if found, err := c.newestIn(t, b); err != nil || found != 2 {
		t.Errorf("afterwards step %d is loaded, %v", found, err)
	}
}

// silent is a storage whose server does not answer for some files.
type silent struct {
	storage.Storage
	file string
}

func (s silent) Open(ctx context.Context, name string) (storage.Object, error) {
	if len(name) >= len(s.file) && name[len(name)-len(s.file):] == s.file {
		return nil, fmt.Errorf("storage: %s: no answer within 30 s", name)
	}
	return s.Storage.Open(ctx, name)
}
