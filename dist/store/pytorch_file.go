// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// The file of a PyTorch FileStore is records from its first byte on, each of them a key
// and a value, and each of those its length (4 bytes, little endian) and its bytes. A key
// is as on the wire: "/" and what the user calls it, or one of PyTorch's own without the
// slash. "-" before it, and an empty value, is its deletion.
const (
	maxFileKey = 64 << 10
	// Those who have opened the file, and those who have closed it: the last one of
	// these removes it.
	refKey     = pyTorchRaw + "refcount/"
	cleanupKey = pyTorchRaw + "cleanup/"
)

// PyTorchFile is a [Store] in a file that PyTorch's processes share as a FileStore
// (init_method file://…): a [File] in PyTorch's format. Make one with OpenPyTorchFile
// and Close it at the end.
//
// Add reads the number at the beginning of the value, an empty one as 0, and its sum wraps
// around beyond 64 bits. There are no queues (ErrUnsupported), and keys that PyTorch keeps for itself are not
// counted by NumKeys. What a process that died has half written is cut off by the next
// writer of ours; PyTorch's processes wait for its rest for ever.
type PyTorchFile struct {
	*File
	numWorkers int

	closing sync.Once
	err     error
}

// OpenPyTorchFile opens PyTorch's store in the file at path, which is made if there
// is none. When numWorkers is not negative, and as many processes have closed the file
// and none has it open, the one that closes it last removes it, as PyTorch's do.
func OpenPyTorchFile(path string, numWorkers int) (*PyTorchFile, error) {
	ctx, cancel := context.WithTimeout(context.Background(), openPatience)
	defer cancel()
	f, err := openFile(ctx, path, pyTorchFormat{}, 0o644)
	if err != nil {
		return nil, &Error{Op: "open", Addr: path, Err: plainPath(err)}
	}
	s := &PyTorchFile{File: f, numWorkers: numWorkers}
	f.methods.do = s.do
	if _, err := f.Add(ctx, refKey, 1); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// do runs a request.
func (s *PyTorchFile) do(ctx context.Context, q request) (reply, error) {
	switch q.op {
	case opPush, opPop, opQueueLen:
		keys, err := q.check()
		switch {
		case err != nil:
		case ctx.Err() != nil:
			keys, err = q.keys, ctxerr.Of(ctx)
		default:
			keys, err = q.keys, fmt.Errorf("%w: a FileStore has no queues", ErrUnsupported)
		}
		return reply{}, &Error{Op: q.op.String(), Keys: keys, Addr: s.path, Err: err}
	}
	if q.op == opAdd {
		q.op = opPyTorchFileAdd
	}
	return s.File.do(ctx, q)
}

// Close counts this process out and closes the file; the last one removes it. Calls under
// way fail with ErrClosed.
func (s *PyTorchFile) Close() error {
	s.closing.Do(func() {
		s.err = errors.Join(s.countOut(), s.File.Close())
	})
	return s.err
}

func (s *PyTorchFile) countOut() error {
	if info, err := s.f.Stat(); err == nil && isRemoved(info) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), openPatience)
	defer cancel()
	closed, err := s.Add(ctx, cleanupKey, 1)
	if err != nil {
		return err
	}
	open, err := s.Add(ctx, refKey, -1)
	if err != nil || s.numWorkers < 0 || open > 0 || closed < int64(s.numWorkers) {
		return err
	}
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return &Error{Op: "close", Addr: s.path, Err: plainPath(err)}
	}
	return nil
}

// pyTorchFormat is the format of a FileStore.
type pyTorchFormat struct{}

func (pyTorchFormat) begin(*os.File) error { return nil } // nothing comes before the first record

func (pyTorchFormat) headSize() int64 { return 0 }

func (pyTorchFormat) appendRecord(b []byte, q *request, m *machine) []byte {
	for _, k := range q.keys {
		v, ok := m.values[k]
		at := len(b)
		b = append(b, 0, 0, 0, 0)
		if !ok {
			b = append(b, '-')
		}
		b = toPyTorch(b, k)
		binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4))
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(v))), v...)
	}
	return b
}

func (pyTorchFormat) nextRecord(b []byte, atEnd bool) (q request, size int, err error) {
	key, size, err := nextField(b, maxFileKey, atEnd)
	if err != nil {
		return request{}, size, err
	}
	if len(key) == 0 {
		return request{}, 0, fmt.Errorf("%w: a key of no bytes", errDamaged)
	}
	value, n, err := nextField(b[size:], MaxValue, atEnd)
	if n > 0 {
		n += size
	}
	if err != nil {
		return request{}, n, err
	}
	if key[0] == '-' {
		return request{op: opDelete, keys: []string{fromPyTorch(key[1:])}}, n, nil
	}
	return request{op: opSet, keys: []string{fromPyTorch(key)}, value: value}, n, nil
}

// nextField reads a length and as many bytes at the beginning of b. For errShort the size is
// what would be enough to know more, 0 if the file ends before.
func nextField(b []byte, most uint32, atEnd bool) (field []byte, size int, err error) {
	if len(b) < 4 {
		if atEnd {
			return nil, 0, errShort
		}
		return nil, 4, errShort
	}
	n := binary.LittleEndian.Uint32(b)
	if n > most {
		return nil, 0, fmt.Errorf("%w, or no FileStore of PyTorch's: a key or a value of %d bytes", errDamaged, n)
	}
	size = 4 + int(n)
	if size > len(b) {
		if atEnd {
			return nil, 0, errShort
		}
		return nil, size, errShort
	}
	return b[4:size], size, nil
}
