// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// Commit is as in [storage.Storage]: the manifest is put if there is none.
func (b *Bucket) Commit(ctx context.Context, stage, name string, manifest []byte) error {
	if err := b.begin(ctx, name, stage); err != nil {
		return err
	}
	if !strings.HasPrefix(stage, name+"/") {
		return fmt.Errorf("storage: %s is no stage of %s", storage.At(b, stage), name)
	}
	how, err := b.CommitsBy(ctx)
	if err != nil {
		return err
	}
	c := &commit{b: b, stage: stage, name: name, manifest: manifest, key: name + "/" + storage.ManifestName, seen: map[string]time.Time{}}
	if how == CommitByCondition {
		return c.byCondition(ctx)
	}
	return c.byListing(ctx)
}

// Replace is as in [storage.Storage]: the manifest is put, whatever is there.
func (b *Bucket) Replace(ctx context.Context, stage, name string, manifest []byte) error {
	if err := b.begin(ctx, name, stage); err != nil {
		return err
	}
	if !strings.HasPrefix(stage, name+"/") {
		return fmt.Errorf("storage: %s is no stage of %s", storage.At(b, stage), name)
	}
	c := &commit{b: b, stage: stage, name: name, manifest: manifest, key: name + "/" + storage.ManifestName}
	err := c.put(ctx, func(ctx context.Context) error {
		return b.put(ctx, c.key, manifest, minio.PutObjectOptions{ContentType: "application/json"})
	})
	if err == nil || !c.sent {
		return err
	}
	if err := c.doubt(ctx, err); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return c.inDoubt(err) // the old one is there now
}

const (
	// numProbes is how many conditional puts a probe makes at once.
	numProbes = 4
	// probeAttempts is how often one of them is repeated: some servers answer 500
	// where a condition does not hold.
	probeAttempts = 5
)

// CommitsBy says how the bucket commits: [CommitByCondition], or [CommitByListing]
// where the server ignores conditions or does not know them. It asks the server once.
func (b *Bucket) CommitsBy(ctx context.Context) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.commit != "" {
		return b.commit, nil
	}
	probe := ".probe-" + randomName()
	errs := make([]error, numProbes)
	var wg sync.WaitGroup
	for i := range numProbes {
		wg.Go(func() {
			errs[i] = b.retryTimes(ctx, "probe", probe, 0, probeAttempts, func(ctx context.Context) error { return b.putIfNone(ctx, probe, []byte{byte(i)}) })
		})
	}
	wg.Wait()
	numTaken, numRefused, numUnknown := 0, 0, 0
	var failed error
	for _, err := range errs {
		switch status := statusOf(err); {
		case err == nil:
			numTaken++
		case status == http.StatusPreconditionFailed:
			numRefused++
		case status == http.StatusNotImplemented, status == http.StatusBadRequest:
			numUnknown++
		default:
			failed = err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return "", failed
	}
	how := CommitByCondition
	switch {
	case failed != nil && numTaken+numRefused == 0:
		return "", failed // it is no matter of conditions
	case numTaken > 1, numRefused == 0, numUnknown > 0:
		// A put whose answer was lost is refused when it is repeated, so it may be
		// that all were refused. But where one was taken, others are refused.
		how = CommitByListing
	}
	if numTaken+numRefused > 0 {
		if err := b.removeObject(ctx, probe); err != nil {
			return "", err
		}
	}
	b.commit = how
	return how, nil
}

// putIfNone makes an object if there is none, in one attempt.
func (b *Bucket) putIfNone(ctx context.Context, name string, data []byte) error {
	opts := minio.PutObjectOptions{ContentType: "application/json"}
	opts.SetMatchETagExcept("*")
	return b.put(ctx, name, data, opts)
}

// commit is one commit under way.
type commit struct {
	b           *Bucket
	stage, name string
	key         string // of the manifest
	manifest    []byte
	seen        map[string]time.Time // when the intents of others were first seen
	// sent: a put of the manifest was not answered, so it may take place at any time.
	sent bool
}

// taken looks at the manifest that is there: nil if it is this commit's own,
// [fs.ErrExist] if it is another's, [fs.ErrNotExist] if there is none.
func (c *commit) taken(ctx context.Context) error {
	o, err := c.b.Open(ctx, c.key)
	if err != nil {
		return err
	}
	if o.Size() != int64(len(c.manifest)) {
		return c.exists()
	}
	got := make([]byte, o.Size())
	if n, err := o.ReadAt(got, 0); n < len(got) {
		return err
	}
	if !bytes.Equal(got, c.manifest) {
		return c.exists()
	}
	return nil
}

func (c *commit) exists() error {
	return &storage.ExistError{Text: "storage: " + storage.At(c.b, c.name) + " is there already"}
}

// put puts the manifest by one attempt after the other.
func (c *commit) put(ctx context.Context, attempt func(ctx context.Context) error) error {
	return c.b.retry(ctx, "commit", c.key, int64(len(c.manifest)), func(ctx context.Context) error {
		err := c.b.attempt(ctx, int64(len(c.manifest)), attempt)
		if status := statusOf(err); err != nil && (status == 0 || status >= 500 || status < 400) {
			c.sent = true
		}
		return err
	})
}

func (c *commit) byCondition(ctx context.Context) error {
	for {
		err := c.put(ctx, func(ctx context.Context) error { return c.b.putIfNone(ctx, c.key, c.manifest) })
		if err == nil {
			return nil
		}
		if statusOf(err) != http.StatusPreconditionFailed {
			return c.doubt(ctx, err)
		}
		// Somebody's is there, or that of an attempt whose answer was lost.
		err = c.taken(ctx)
		if !errors.Is(err, fs.ErrNotExist) {
			if err != nil && !errors.Is(err, fs.ErrExist) {
				return c.doubt(ctx, err)
			}
			return err
		}
	}
}

// doubt decides what came of a commit that failed with err.
func (c *commit) doubt(ctx context.Context, err error) error {
	if !c.sent {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 15*time.Second)
	defer cancel()
	switch terr := c.taken(ctx); {
	case terr == nil, errors.Is(terr, fs.ErrExist):
		return terr
	}
	return c.inDoubt(err)
}

// inDoubt notes that the manifest may yet be put.
func (c *commit) inDoubt(err error) error {
	c.b.mu.Lock()
	c.b.doubts[c.stage] = true
	c.b.mu.Unlock()
	return &storage.DoubtError{Name: storage.At(c.b, c.name), Err: err}
}

// byListing commits on a server that ignores conditions. The intents lie beside the
// manifest, so that one list shows them all. A saver puts the manifest only after a
// list, made after its intent was put, that shows no manifest and no other intent; and
// its intent stays until the manifest is put. So of two savers one sees the other's
// intent or manifest. A saver that sees another's intent before it has one of its own
// only waits.
func (c *commit) byListing(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 4*c.b.intentLife+attemptTime(int64(len(c.manifest))),
		errors.New("the intents of other savers stand in the way for too long: is another run saving there?"))
	defer cancel()
	for attempt := 0; ; attempt++ {
		found, err := c.look(ctx, "")
		if err != nil {
			return err
		}
		done := false
		switch {
		case found.manifest:
			done, err = c.ended(ctx)
		case len(found.others) == 0:
			done, err = c.tryListing(ctx)
		}
		if done || err != nil {
			return err
		}
		if err := c.b.pauses.wait(ctx, min(attempt, 4)); err != nil {
			return fmt.Errorf("storage: commit %s: %w", storage.At(c.b, c.name), err)
		}
	}
}

const intentInfix = ".intent-"

// tryListing puts an intent and sees it through. done is false if it was withdrawn
// for another's, or has become too old.
func (c *commit) tryListing(ctx context.Context) (done bool, err error) {
	intent := c.key + intentInfix + randomName()
	began := time.Now()
	withdraw := true
	defer func() {
		if !withdraw {
			return
		}
		// If that fails, the others wait as for a saver that was killed.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		c.b.removeObject(ctx, intent)
	}()
	if err := storage.WriteFile(ctx, c.b, intent, []byte(c.stage)); err != nil {
		return true, err
	}
	for attempt := 0; ; attempt++ {
		found, err := c.look(ctx, intent)
		switch {
		case err != nil:
			return true, err
		case found.manifest:
			return c.ended(ctx)
		case !found.mine, time.Since(began) > c.b.intentLife/4:
			return false, nil // others may count it for dead
		case len(found.others) == 0:
			// The others wait for the manifest, as long as the intent counts.
			put, cancel := context.WithTimeout(ctx, c.b.intentLife/4)
			defer cancel()
			err := c.put(put, c.anyPut)
			if statusOf(err) == http.StatusPreconditionFailed {
				return c.ended(ctx)
			}
			if err != nil {
				err = c.doubt(ctx, err)
				withdraw = !errors.As(err, new(*storage.DoubtError))
			}
			return true, err
		case found.others[0] < intent:
			return false, nil
		}
		if err := c.b.pauses.wait(ctx, min(attempt, 4)); err != nil {
			return true, fmt.Errorf("storage: commit %s: %w", storage.At(c.b, c.name), err)
		}
	}
}

// ended returns what came of the commit if there is a manifest. If there is none any
// more, it goes on.
func (c *commit) ended(ctx context.Context) (done bool, err error) {
	if err = c.taken(ctx); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return true, err
}

// view is what a list shows of a commit.
type view struct {
	manifest bool
	mine     bool     // the intent that was asked for
	others   []string // the intents of others that count, in order
}

// look lists the manifest and the intents. An intent that this commit has seen for
// longer than intents count is that of a dead saver, and is removed.
func (c *commit) look(ctx context.Context, intent string) (v view, err error) {
	objects, err := c.b.list(ctx, c.key, false)
	if err != nil {
		return v, err
	}
	for _, o := range objects {
		name := c.b.name(o.Key)
		switch {
		case name == c.key:
			v.manifest = true
		case name == intent:
			v.mine = true
		case strings.HasPrefix(name, c.key+intentInfix):
			if _, ok := c.seen[name]; !ok {
				c.seen[name] = time.Now()
			}
			if time.Since(c.seen[name]) <= c.b.intentLife {
				v.others = append(v.others, name)
			} else if err := c.b.removeObject(ctx, name); err != nil {
				return v, err
			}
		}
	}
	return v, nil
}

// anyPut puts the manifest: with the condition too, for another saver's sake whose
// probe has come out otherwise, and without it where the server does not know it.
func (c *commit) anyPut(ctx context.Context) error {
	err := c.b.putIfNone(ctx, c.key, c.manifest)
	if status := statusOf(err); status == http.StatusNotImplemented || status == http.StatusBadRequest {
		err = c.b.put(ctx, c.key, c.manifest, minio.PutObjectOptions{ContentType: "application/json"})
	}
	return err
}
