// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/checkpoint/storage/s3/s3test"
	"github.com/cohort-ml/cohort/internal/seeded"
)

var numSteps = flag.Int("steps", 12, "steps that each saver of TestSavers saves; half as many of TestCheckpoints")

// saver saves steps into a prefix, as a rank 0 does, and is killed now and then.
type saver struct {
	b    *Bucket
	name string
	r    *rand.Rand
}

func stepName(step int) string { return fmt.Sprintf("step-%03d", step) }

// save makes a checkpoint of two files, the second linked from the step before if
// that is there. The manifest has a line for each file. killed: the saver stopped at
// some point and cleaned nothing up.
func (s *saver) save(ctx context.Context, step int) (killed bool, err error) {
	id := fmt.Sprintf("%s%d", s.name, s.r.Uint32())
	kill := -1 // no kill
	if s.r.IntN(4) == 0 {
		kill = s.r.IntN(4)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dies := func(at int) bool {
		if kill == at {
			time.AfterFunc(time.Duration(s.r.IntN(4000))*time.Microsecond, cancel) // some time within what follows
		}
		return kill >= 0 && ctx.Err() != nil
	}
	stage, folder := s.b.Stage(stepName(step), id)
	data := bytes.Repeat([]byte(id+"\n"), 20_000)
	frozen := []byte("frozen")
	manifest := fmt.Sprintf("%s/data %08x\n%s/frozen %08x\n", folder, crc32.ChecksumIEEE(data), folder, crc32.ChecksumIEEE(frozen))
	var committed bool
	for i, do := range []func() error{
		func() error { return storage.WriteFile(ctx, s.b, stage+"/data", data) },
		func() error {
			if before, ok := s.folderOf(ctx, step-1); ok {
				if err := s.b.Link(ctx, before+"/frozen", stage+"/frozen"); !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
			return storage.WriteFile(ctx, s.b, stage+"/frozen", frozen)
		},
		func() error {
			err := s.b.Commit(ctx, stage, stepName(step), []byte(manifest))
			committed = err == nil
			return err
		},
		func() error { return s.b.Remove(ctx, stepName(step-3)) },
	} {
		dies(i)
		if err = do(); err != nil {
			break
		}
	}
	if kill >= 0 && ctx.Err() != nil {
		return true, err
	}
	if err != nil && !committed && !errors.As(err, new(*storage.DoubtError)) {
		err = errors.Join(err, s.b.Remove(ctx, stage))
	}
	if committed {
		err = nil
	}
	return false, err
}

// folderOf returns where the files of a step's checkpoint lie.
func (s *saver) folderOf(ctx context.Context, step int) (folder string, ok bool) {
	b, err := storage.ReadFile(ctx, s.b, stepName(step)+"/"+storage.ManifestName, 1000)
	id, _, _ := strings.Cut(string(b), "/")
	return stepName(step) + "/" + id, err == nil
}

// latest returns the newest step with a manifest, and an error unless its files are
// those of the manifest.
func latest(ctx context.Context, b *Bucket) (step int, err error) {
	entries, err := b.List(ctx, "")
	if err != nil {
		return 0, err
	}
	for i := len(entries) - 1; i >= 0; i-- {
		name := entries[i].Name
		text, err := storage.ReadFile(ctx, b, name+"/"+storage.ManifestName, 1000)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
			file, sum, _ := strings.Cut(line, " ")
			data, err := storage.ReadFile(ctx, b, name+"/"+file, 1<<20)
			if err != nil {
				return 0, err
			}
			if fmt.Sprintf("%08x", crc32.ChecksumIEEE(data)) != sum {
				return 0, fmt.Errorf("%s/%s has other bytes than its manifest says", name, file)
			}
		}
		return strconv.Atoi(strings.TrimPrefix(name, "step-"))
	}
	return 0, nil
}

// TestSavers: two savers that save the same steps at once, through a network that
// spoils a fifth of the requests, each killed now and then. Exactly one wins each step,
// the newest checkpoint never goes back, and each one is whole whenever it is read.
func TestSavers(t *testing.T) {
	s3test.Credentials(t)
	seed := seeded.Of(t)
	for _, ignore := range []bool{false, true} {
		t.Run(fmt.Sprintf("no conditions=%v", ignore), func(t *testing.T) {
			s := s3test.GoFake(t)
			p := s3test.NewProxy(t, s, seed, s3test.Faults{Rate: 0.2, Delay: 4 * time.Millisecond, Late: true, IgnoreConditions: ignore})
			ctx, done := context.WithCancel(t.Context())
			defer done()
			var reader sync.WaitGroup
			reader.Go(func() { watch(t, ctx, mustOpen(t, s.Address("run"))) })
			savers := make([]*saver, 2)
			for i := range savers {
				b := mustOpen(t, p.Address("run"))
				savers[i] = &saver{b: b, name: string(rune('a' + i)), r: rand.New(rand.NewPCG(seed, uint64(i)))}
			}
			numKilled, numDoubts := 0, 0
			for step := 1; step <= *numSteps; step++ {
				var all sync.WaitGroup
				errs, killed := make([]error, len(savers)), make([]bool, len(savers))
				for i, s := range savers {
					all.Go(func() { killed[i], errs[i] = s.save(t.Context(), step) })
				}
				all.Wait()
				numWon := 0
				for i, err := range errs {
					switch {
					case killed[i]:
						numKilled++
					case err == nil:
						numWon++
					case errors.As(err, new(*storage.DoubtError)):
						numDoubts++
					case !errors.Is(err, fs.ErrExist):
						t.Errorf("step %d: %v", step, err)
					}
				}
				if numWon > 1 || numWon == 0 && !killed[0] && !killed[1] && numDoubts == 0 {
					t.Errorf("seed %d, step %d: %d savers have won: %v", seed, step, numWon, errs)
				}
			}
			done()
			reader.Wait()
			p.Settle()
			if step, err := latest(t.Context(), mustOpen(t, s.Address("run"))); err != nil || step < *numSteps-3 {
				t.Errorf("at the end the newest step is %d, %v", step, err)
			}
			t.Logf("%d savers were killed, %d commits in doubt; %s", numKilled, numDoubts, p)
		})
	}
}

// watch reads the newest checkpoint again and again.
func watch(t *testing.T, ctx context.Context, b *Bucket) {
	newest, numReads, numGone := 0, 0, 0
	for ctx.Err() == nil {
		step, err := latest(ctx, b)
		switch {
		case ctx.Err() != nil:
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, errChanged):
			numGone++ // removed meanwhile: a newer one is there
		case err != nil:
			t.Errorf("reading the newest checkpoint: %v", err)
			return
		case step < newest:
			t.Errorf("the newest checkpoint was step %d and is step %d", newest, step)
			return
		default:
			newest = step
			numReads++
		}
	}
	t.Logf("the newest checkpoint was read %d times; %d times it was removed meanwhile", numReads, numGone)
}

// TestDoubt: a commit whose request was sent and not answered is in doubt; its stage
// stays, and when the request arrives after all the checkpoint is whole.
func TestDoubt(t *testing.T) {
	s3test.Credentials(t)
	s := s3test.GoFake(t)
	for _, how := range []string{CommitByCondition, CommitByListing} {
		var held func()
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			body, _ := io.ReadAll(req.Body)
			send := func() (*http.Response, error) {
				out, err := http.NewRequest(req.Method, s.URL+req.URL.RequestURI(), bytes.NewReader(body))
				if err != nil {
					return nil, err
				}
				out.Header = req.Header.Clone()
				if len(body) == 0 {
					out.Body = http.NoBody
				}
				return http.DefaultClient.Do(out)
			}
			if req.Method == http.MethodPut && strings.HasSuffix(req.URL.Path, "/"+storage.ManifestName) {
				held = func() {
					if resp, err := send(); err == nil {
						resp.Body.Close()
					}
				}
				panic(http.ErrAbortHandler)
			}
			resp, err := send()
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			defer resp.Body.Close()
			for k, v := range resp.Header {
				w.Header()[k] = v
			}
			w.WriteHeader(resp.StatusCode)
			io.Copy(w, resp.Body)
		}))
		behind := s3test.Server{URL: front.URL}
		b := mustOpen(t, behind.Address("doubt-"+how, "commit="+how))
		b.pauses.numAttempts = 3
		stage, _ := b.Stage("step-1", "id")
		if err := storage.WriteFile(t.Context(), b, stage+"/data", []byte("1")); err != nil {
			t.Fatal(err)
		}
		var doubt *storage.DoubtError
		if err := b.Commit(t.Context(), stage, "step-1", []byte("{}")); !errors.As(err, &doubt) {
			t.Fatalf("%s: %v", how, err)
		}
		if err := b.Remove(t.Context(), stage); err == nil {
			t.Errorf("%s: the stage of a commit in doubt was removed", how)
		}
		held()
		plain := mustOpen(t, s.Address("doubt-"+how))
		for _, file := range []string{storage.ManifestName, "id/data"} {
			if _, err := storage.ReadFile(t.Context(), plain, "step-1/"+file, 10); err != nil {
				t.Errorf("%s: %v", how, err)
			}
		}
		front.Close()
		http.DefaultClient.CloseIdleConnections()
	}
}

// TestProbe: how a bucket commits is what the server does with conditions.
func TestProbe(t *testing.T) {
	s3test.Credentials(t)
	for _, tc := range []struct {
		name   string
		answer func(n int) int // status of the n-th conditional put, from 0
		want   string          // or an error's words
	}{
		{"honours them", func(n int) int { return map[bool]int{true: 200, false: 412}[n == 0] }, CommitByCondition},
		{"its first answer is lost", func(n int) int { return map[bool]int{true: 500, false: 412}[n == 0] }, CommitByCondition},
		{"ignores them", func(int) int { return 200 }, CommitByListing},
		{"ignores them at once", func(n int) int { return map[bool]int{true: 200, false: 412}[n < 2] }, CommitByListing},
		{"does not know them", func(int) int { return 501 }, CommitByListing},
		{"fails where they do not hold", func(n int) int { return map[bool]int{true: 200, false: 500}[n == 0] }, CommitByListing},
		{"is down", func(int) int { return 503 }, "after 5 attempts"},
		{"forbids it", func(int) int { return 403 }, "check the credentials"},
	} {
		var mu sync.Mutex
		n := 0
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodDelete {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			if req.Method != http.MethodPut || req.Header.Get("If-None-Match") != "*" {
				t.Errorf("%s %s %v", req.Method, req.URL, req.Header)
			}
			mu.Lock()
			defer mu.Unlock()
			w.WriteHeader(tc.answer(n))
			n++
		}))
		b := mustOpen(t, (&s3test.Server{URL: front.URL}).Address("x"))
		got, err := b.CommitsBy(t.Context())
		if got != tc.want && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("a server that %s: %q, %v", tc.name, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "test-secret") {
			t.Errorf("the error has a secret: %v", err)
		}
		front.Close()
	}
}

// TestErrors: what a server refuses is said in words, with the place.
func TestErrors(t *testing.T) {
	s3test.Credentials(t)
	s := s3test.GoFake(t)
	b := mustOpen(t, "s3://no-such-bucket/a?endpoint="+s.URL)
	if _, err := b.List(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "there is no bucket no-such-bucket") {
		t.Errorf("%v", err)
	}
	status := 0
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { w.WriteHeader(status) }))
	defer front.Close()
	b = mustOpen(t, (&s3test.Server{URL: front.URL}).Address("a"))
	b.pauses.numAttempts = 2
	for _, tc := range []struct {
		status int
		is     error
		want   string
	}{
		{403, fs.ErrPermission, "AccessDenied"},
		{401, fs.ErrPermission, "check the credentials"},
		{404, fs.ErrNotExist, "it is not there"},
		{500, nil, "500 Internal Server Error"},
		{503, nil, "(after 2 attempts)"},
	} {
		status = tc.status
		_, err := b.Open(t.Context(), "step-1/file")
		if err == nil || !strings.Contains(err.Error(), "s3://runs/a/step-1/file") || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) {
			t.Errorf("%d: %v", tc.status, err)
		}
	}
	b = mustOpen(t, "s3://runs/a?endpoint=http://127.0.0.1:1")
	b.pauses.numAttempts = 2
	if _, err := b.Open(t.Context(), "file"); err == nil || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}

// TestManyObjects: lists of more than one page are whole, also where pages fail, and
// folders of them go. Uploads that a killed saver has begun go with its stage.
func TestManyObjects(t *testing.T) {
	s3test.Credentials(t)
	seed := seeded.Of(t)
	s := s3test.GoFake(t)
	b := mustOpen(t, s.Address("many"))
	const n = 2100
	names := make(chan int)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range names {
				if err := storage.WriteFile(t.Context(), b, fmt.Sprintf("step-1/id/file-%04d", i), nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		names <- i
	}
	close(names)
	all.Wait()
	p := s3test.NewProxy(t, s, seed, s3test.Faults{Rate: 0.3})
	entries, err := mustOpen(t, p.Address("many")).List(t.Context(), "step-1/id")
	if err != nil || len(entries) != n {
		t.Errorf("%d entries, %v", len(entries), err)
	}
	for i, e := range entries {
		if e.Name != fmt.Sprintf("file-%04d", i) {
			t.Fatalf("entry %d is %s", i, e.Name)
		}
	}
	id, err := b.core.NewMultipartUpload(t.Context(), b.place.bucket, b.key("step-1/id/begun"), minio.PutObjectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Remove(t.Context(), "step-1"); err != nil {
		t.Fatal(err)
	}
	if entries, err := b.List(t.Context(), ""); err != nil || len(entries) != 0 {
		t.Errorf("%d entries are left, %v", len(entries), err)
	}
	if _, err := b.core.ListObjectParts(t.Context(), b.place.bucket, b.key("step-1/id/begun"), id, 0, 10); err == nil {
		t.Error("an upload that nobody will complete is left")
	}
}
