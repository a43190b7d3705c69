// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
)

const (
	// How long a wait, for a key or for the file's lock, sleeps between looks.
	firstLook = 100 * time.Microsecond
	maxLook   = 10 * time.Millisecond
	// openPatience bounds the wait for the lock while a file is made.
	openPatience = 10 * time.Second
)

// File is a Store in a file: the processes that open the same path share it,
// on one host or on several whose file system has coherent sizes and
// locks. Make one with OpenFile and Close it at the end; the file stays.
//
// The file is a log of the requests that changed something, and each File has
// a replica of the state, made by doing the same ones. A change takes the file's lock (flock),
// which the system gives back when its holder dies, does what others have
// logged, then its own, and logs that. What a process that died has half
// written is cut off by the next writer. Reads and waits take no lock; waits
// look at the file's size every 10 ms at most. Pops of one queue by several
// processes are served in no order.
//
// The file only grows, so it is for finding each other and agreeing, not for
// values that change all the time. It outlives processes; it is not forced to
// the disk, so it need not outlive the system. A new job takes a new path, or a
// Prefix of its own. Who may open the file may do everything: it is made for
// its owner alone.
type File struct {
	methods
	path   string
	format fileFormat

	turn chan struct{} // a semaphore: callers wait for it only as long as their contexts last
	// The rest is its holder's.
	f      *os.File
	m      *machine
	end    int64 // the replica has seen the file up to here
	buf    []byte
	append func(b []byte, at int64) error // of a record, for tests to fail

	closing sync.Once
	closed  chan struct{}
}

// fileFormat is how a File's log is written down.
type fileFormat interface {
	// begin checks what a file begins with, or writes that in a new one. The lock is held.
	begin(f *os.File) error
	// headSize is the size of what comes before the first record.
	headSize() int64
	// appendRecord appends the record of a request that m has done.
	appendRecord(b []byte, q *request, m *machine) []byte
	// nextRecord is the function of that name.
	nextRecord(b []byte, atEnd bool) (q request, size int, err error)
}

// OpenFile opens the store in the file at path, which is made if there is
// none. A file that is something else is an error and stays as it is.
func OpenFile(path string) (*File, error) {
	ctx, cancel := context.WithTimeout(context.Background(), openPatience)
	defer cancel()
	s, err := openFile(ctx, path, ownFormat{}, 0o600)
	if err != nil {
		return nil, &Error{Op: "open", Addr: path, Err: plainPath(err)}
	}
	return s, nil
}

func openFile(ctx context.Context, path string, format fileFormat, mode os.FileMode) (*File, error) {
	if path == "" {
		return nil, errors.New("the path is empty: give that of a file, which is made if there is none")
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, mode)
	if err != nil {
		return nil, err
	}
	s := &File{path: path, format: format, turn: make(chan struct{}, 1), f: f, closed: make(chan struct{})}
	s.methods.do = s.do
	s.append = func(b []byte, at int64) error {
		_, err := f.WriteAt(b, at)
		return err
	}
	if err := s.begin(ctx); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// begin reads the header, or makes it, and the log.
func (s *File) begin(ctx context.Context) error {
	if info, err := s.f.Stat(); err != nil {
		return err
	} else if !info.Mode().IsRegular() {
		return errors.New("it is no regular file")
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.unlock()
	if err := s.format.begin(s.f); err != nil {
		return err
	}
	s.forget()
	return s.catchUp(true)
}

// Path returns the file's path, as it was given to OpenFile.
func (s *File) Path() string { return s.path }

// Close closes the file. Calls under way fail with ErrClosed.
func (s *File) Close() error {
	var err error
	s.closing.Do(func() {
		close(s.closed)
		s.turn <- struct{}{} // and never given back
		err = s.f.Close()
	})
	return err
}

// forget empties the replica.
func (s *File) forget() {
	s.m, s.end = newMachine(), s.format.headSize()
}

// do runs a request.
func (s *File) do(ctx context.Context, q request) (reply, error) {
	fail := func(keys []string, err error) (reply, error) {
		return reply{}, &Error{Op: q.op.String(), Keys: keys, Addr: s.path, Err: plainPath(err)}
	}
	if keys, err := q.check(); err != nil {
		return fail(keys, err)
	}
	if ctx.Err() != nil {
		return fail(q.keys, ctxerr.Of(ctx))
	}
	ctx, release := deadline(ctx)
	defer release()
	q = q.clone()
	var missing []string // at the last look
	gaveUp := func(err error) (reply, error) {
		switch {
		case missing == nil:
			return fail(q.keys, err)
		case ctx.Err() != nil:
			err = missingError(ctxerr.Of(ctx), q.op)
		}
		return fail(missing, err)
	}
	for pause := firstLook; ; {
		if err := s.take(ctx); err != nil {
			return gaveUp(err)
		}
		r, lacking, err := s.try(ctx, q)
		<-s.turn
		switch {
		case err != nil && ctx.Err() != nil:
			return gaveUp(err)
		case err != nil:
			return fail(q.keys, err)
		case lacking == nil:
			if err := r.err(); err != nil {
				return fail(q.keys, err)
			}
			return r.clone(), nil
		}
		missing = lacking
		if err := s.sleep(ctx, &pause); err != nil {
			return gaveUp(err)
		}
	}
}

// take waits for the turn.
func (s *File) take(ctx context.Context) error {
	select {
	case <-s.closed:
		return ErrClosed
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-s.closed:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("the file was busy with other calls: %w", ctxerr.Of(ctx))
	}
}

// sleep sleeps between two looks, longer each time.
func (s *File) sleep(ctx context.Context, pause *time.Duration) error {
	timer := time.NewTimer(*pause)
	defer timer.Stop()
	*pause = min(2**pause, maxLook)
	select {
	case <-timer.C:
		return nil
	case <-s.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctxerr.Of(ctx)
	}
}

// try does a request if it need not wait; else it returns the keys that are missing.
func (s *File) try(ctx context.Context, q request) (r reply, missing []string, err error) {
	if err := s.catchUp(false); err != nil {
		if !errors.Is(err, errUnsure) {
			return reply{}, nil, err
		}
		// Nobody writes while we hold the lock.
		if err := s.lock(ctx); err != nil {
			return reply{}, nil, err
		}
		err = s.catchUp(true)
		s.unlock()
		if err != nil {
			return reply{}, nil, err
		}
	}
	if !s.m.ready(&q) {
		return reply{}, s.absent(&q), nil
	}
	if !q.op.changes() {
		return s.apply(q), nil, nil
	}
	if err := s.lock(ctx); err != nil {
		return reply{}, nil, err
	}
	defer s.unlock()
	if err := s.catchUp(true); err != nil {
		return reply{}, nil, err
	}
	if !s.m.ready(&q) { // another process popped it
		return reply{}, s.absent(&q), nil
	}
	r, err = s.change(q)
	return r, nil, err
}

// absent returns the keys that a request waits for.
func (s *File) absent(q *request) []string {
	if q.op == opPop {
		return q.keys
	}
	return s.m.missing(q.keys)
}

// apply does a request that need not wait in the replica.
func (s *File) apply(q request) reply {
	return s.m.apply(call{}, q, nil)[0].reply // nobody waits in it, so there is no other answer
}

// change does a request and logs it; the lock is held.
func (s *File) change(q request) (reply, error) {
	idle := q.op == opAdd && q.delta == 0 && len(s.m.missing(q.keys)) == 0 || q.op == opPyTorchFileAdd && s.m.addsNothing(&q)
	r := s.apply(q)
	if r.status != statusOK || idle {
		return r, nil // nothing has changed
	}
	b := s.format.appendRecord(s.buf[:0], &q, s.m)
	if cap(b) <= logChunk {
		s.buf = b
	}
	if err := s.append(b, s.end); err != nil {
		// The replica has what the file has not.
		end := s.end
		s.forget()
		return reply{}, errors.Join(err, s.f.Truncate(end))
	}
	s.end += int64(len(b))
	return r, nil
}

// catchUp does what the log has beyond the replica. With the lock held it
// cuts off what a writer that died has left; without, what is not whole may be being
// written, and what is not right may be being replaced: that is errUnsure.
func (s *File) catchUp(locked bool) error {
	info, err := s.f.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if isRemoved(info) {
		return errors.New("the file has been removed: processes that open the path now get another store")
	}
	if size < s.end && locked {
		return fmt.Errorf("the file has shrunk from %d bytes to %d", s.end, size)
	}
	window := logChunk
	for s.end < size {
		n := int(min(size-s.end, int64(window)))
		if cap(s.buf) < n {
			s.buf = make([]byte, n)
		}
		b := s.buf[:n]
		if n, err := s.f.ReadAt(b, s.end); err != nil && n < len(b) {
			if !locked {
				return errUnsure // cut off in the meantime
			}
			return err
		}
		used := 0
		for {
			q, n, err := s.format.nextRecord(b[used:], s.end+int64(len(b)-used) == size)
			if err == nil && !s.m.ready(&q) {
				err = errDamaged // nobody logs a pop of nothing
			}
			if err == nil {
				s.apply(q.clone())
				used += n
				s.end += int64(n)
				if used < len(b) {
					continue
				}
				break
			}
			if errors.Is(err, errShort) && n > 0 && s.end+int64(n) <= size {
				window = max(logChunk, n) // the record is there, beyond the window
				break
			}
			if errors.Is(err, errShort) && !locked {
				return nil // being written, or its writer has died
			}
			if errors.Is(err, errShort) {
				return s.f.Truncate(s.end)
			}
			if !locked {
				return errUnsure
			}
			return fmt.Errorf("%w at byte %d of %d", err, s.end, size)
		}
	}
	if cap(s.buf) > logChunk {
		s.buf = nil
	}
	return nil
}

// lock takes the file's lock, which other processes hold for as long as they
// write a record.
func (s *File) lock(ctx context.Context) error {
	for pause, tries := firstLook, 0; ; tries++ {
		ok, err := tryLock(s.f)
		if ok || err != nil {
			return err
		}
		if err := s.sleep(ctx, &pause); err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("another process held the file's lock in each of %d tries: %w", tries+1, err)
			}
			return err
		}
		pause = min(pause, 2*time.Millisecond)
	}
}

// unlock cannot fail for a descriptor that is open, and closing it unlocks too.
func (s *File) unlock() { _ = unlockFile(s.f) }

// plainPath takes away the path that package os puts before a cause: Error has it.
func plainPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
