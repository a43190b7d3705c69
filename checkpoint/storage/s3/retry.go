// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// pauses says how often a request is repeated, and after which time.
type pauses struct {
	numAttempts int
	first, last time.Duration // the longest first pause, and the longest of all
}

var defaultPauses = pauses{numAttempts: 10, first: 50 * time.Millisecond, last: 4 * time.Second}

// wait pauses before the next attempt: a random time, so that those who were
// refused together do not come back together.
func (p pauses) wait(ctx context.Context, attempt int) error {
	longest := min(p.first<<min(attempt, 20), p.last)
	t := time.NewTimer(longest/4 + rand.N(longest*3/4+1))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// attemptTime is how long an attempt may take that moves so many bytes: a
// connection that stands still must not hold a save for ever.
func attemptTime(bytes int64) time.Duration {
	const slowest = 256 << 10 // bytes a second
	return 30*time.Second + time.Duration(bytes/slowest)*time.Second
}

// retry does a request about a file until it succeeds, as often as is worth it.
func (b *Bucket) retry(ctx context.Context, op, name string, bytes int64, request func(ctx context.Context) error) error {
	return b.retryTimes(ctx, op, name, bytes, b.pauses.numAttempts, request)
}

func (b *Bucket) retryTimes(ctx context.Context, op, name string, bytes int64, numAttempts int, request func(ctx context.Context) error) error {
	for attempt := 1; ; attempt++ {
		err := b.attempt(ctx, bytes, request)
		if err == nil {
			return nil
		}
		if attempt == numAttempts || !isPassing(ctx, err) {
			return b.fail(ctx, op, name, attempt, err)
		}
		if b.pauses.wait(ctx, attempt-1) != nil {
			return b.fail(ctx, op, name, attempt, err)
		}
	}
}

// attempt does a request once, within its time.
func (b *Bucket) attempt(ctx context.Context, bytes int64, request func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTime(bytes))
	defer cancel()
	return request(ctx)
}

// isPassing says whether a request that failed may succeed when it is repeated.
func isPassing(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	if status := statusOf(err); status != 0 {
		switch code := codeOf(err); {
		case slices.Contains([]string{"SlowDown", "RequestTimeout", "RequestTimeTooSkewed", "InternalError", "OperationAborted", "ConditionalRequestConflict", "IncompleteBody"}, code):
			return true
		case status == http.StatusNotImplemented, status == http.StatusHTTPVersionNotSupported:
			return false
		}
		return status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status == http.StatusConflict || status < 400
	}
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var dns *net.DNSError
	switch {
	case errors.As(err, &unknown), errors.As(err, &host), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return false
	case errors.As(err, &dns) && dns.IsNotFound:
		return false
	case errors.Is(err, errChanged):
		return false
	}
	return !strings.HasPrefix(codeOf(err), "Invalid")
}

func statusOf(err error) int {
	var r minio.ErrorResponse
	if errors.As(err, &r) {
		return r.StatusCode
	}
	return 0
}

func codeOf(err error) string {
	var r minio.ErrorResponse
	if errors.As(err, &r) {
		return r.Code
	}
	return ""
}

// fail makes an error of a request one of the storage: with its place, and with
// what it means for callers.
func (b *Bucket) fail(ctx context.Context, op, name string, numAttempts int, err error) error {
	where := storage.At(b, strings.TrimSuffix(name, "/"))
	if ctx.Err() != nil {
		return fmt.Errorf("storage: %s %s: %w", op, where, errors.Join(context.Cause(ctx), onlyResponse(err)))
	}
	times := ""
	if numAttempts > 1 {
		times = fmt.Sprintf(" (after %d attempts)", numAttempts)
	}
	switch code, status := codeOf(err), statusOf(err); {
	case code == minio.NoSuchBucket: // not fs.ErrNotExist: nobody knows what would be there
		return &storage.ServerError{Err: fmt.Errorf("storage: %s %s: there is no bucket %s at %s: make it first", op, where, b.place.bucket, b.place.endpoint)}
	case status == http.StatusNotFound:
		return fmt.Errorf("storage: %s %s: it is not there: %w", op, where, fs.ErrNotExist)
	case status == http.StatusForbidden, status == http.StatusUnauthorized:
		return fmt.Errorf("storage: %s %s: %s refuses (%s): %s: check the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE) and their rights: %w", op, where, b.place.endpoint.Host, code, err, fs.ErrPermission)
	default:
		return &storage.ServerError{Err: fmt.Errorf("storage: %s %s at %s: %w%s", op, where, b.place.endpoint.Host, oneLine{err}, times)}
	}
}

// oneLine is an error in one line, and not a long one: some servers send whole pages.
type oneLine struct{ error }

func (e oneLine) Unwrap() error { return e.error }

func (e oneLine) Error() string {
	const longest = 300
	line := strings.Join(strings.Fields(e.error.Error()), " ")
	if status := statusOf(e.error); status != 0 {
		line = fmt.Sprintf("%d %s: %s", status, http.StatusText(status), line)
	}
	if len(line) > longest {
		line = line[:longest] + "…"
	}
	return line
}

// onlyResponse drops errors that only say that the context has ended.
func onlyResponse(err error) error {
	if statusOf(err) != 0 {
		return err
	}
	return nil
}

func randomName() string { return fmt.Sprintf("%016x", rand.Uint64()) }
