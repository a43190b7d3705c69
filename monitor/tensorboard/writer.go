// SPDX-License-Identifier: Apache-2.0

package tensorboard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// MaxQueue is how many bytes wait for the disk at most.
	MaxQueue = 8 << 20
	// interval is the time between two writes.
	interval = time.Second
	// fullScalars is of how many steps all scalars are written. Of twice as many every second is, and so on.
	fullScalars = 10_000
)

// Writer writes an event file. Its methods are safe for concurrent use and wait for no disk.
type Writer struct {
	path string
	now  func() time.Time

	mu    sync.Mutex
	queue []byte
	lost  int // records that did not fit
	err   error
	told  bool

	wake, closing, done chan struct{}
}

// Create begins an event file in a directory. A file that another process has made stays.
func Create(dir string, settings map[string]string) (*Writer, error) {
	return create(dir, settings, time.Now)
}

func create(dir string, settings map[string]string, now func() time.Time) (*Writer, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	began := now()
	path := filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%010d.%s.%d.0", began.Unix(), strings.ReplaceAll(host, string(filepath.Separator), "_"), os.Getpid()))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o666)
	if err != nil {
		return nil, fmt.Errorf("tensorboard: %w", err)
	}
	w := &Writer{path: path, now: now, wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{})}
	w.add(event(began, 0).text(eventVersion, "brain.Event:2"))
	if len(settings) > 0 {
		w.add(summary(began, 0, "_hparams_/session_start_info", hparams(settings, began)))
	}
	go w.writing(f)
	return w, nil
}

// Path returns the path of the file.
func (w *Writer) Path() string { return w.path }

// Scalar writes a number. Of a step's own numbers of a long run some are left out, see [Writer.StepIsKept].
func (w *Writer) Scalar(step int, tag string, v float64) {
	w.add(summary(w.now(), step, tag, scalar(v)))
}

// StepIsKept says whether the numbers of a step are to be written: of up to 10,000 steps all are, of up
// to 20,000 every second, of up to 40,000 every fourth, and so on. So a file stays small.
func StepIsKept(step int) bool {
	every := 1
	for most := fullScalars; step > most; most *= 2 {
		every *= 2
	}
	return step%every == 0
}

// Histogram writes a distribution.
func (w *Writer) Histogram(step int, tag string, h Histogram) {
	w.add(summary(w.now(), step, tag, histogram(h)))
}

// Text writes a text, which TensorBoard shows as Markdown.
func (w *Writer) Text(step int, tag, of string) { w.add(summary(w.now(), step, tag, text(of))) }

// Image writes a PNG or JPEG of so many pixels.
func (w *Writer) Image(step int, tag string, width, height int, data []byte) {
	w.add(summary(w.now(), step, tag, image(width, height, data)))
}

// End says that the run has ended, well or not.
func (w *Writer) End(well bool) {
	w.add(summary(w.now(), 0, "_hparams_/session_end_info", ended(well, w.now())))
}

func (w *Writer) add(data []byte) {
	w.mu.Lock()
	if len(w.queue)+len(data) > MaxQueue {
		w.lost++
	} else {
		w.queue = appendRecord(w.queue, data)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Err returns once what has gone wrong: the file could not be written, or records were left out.
func (w *Writer) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told {
		return nil
	}
	err := w.err
	if err == nil && w.lost > 0 {
		err = fmt.Errorf("tensorboard: %s: the disk is too slow, and records are left out", w.path)
	}
	w.told = err != nil
	return err
}

// Close writes what is left. It waits for at most patience.
func (w *Writer) Close(patience time.Duration) {
	close(w.closing)
	select {
	case <-w.done:
	case <-time.After(patience):
	}
}

// writing writes the file until Close, and once more then.
func (w *Writer) writing(f *os.File) {
	defer close(w.done)
	for last := false; !last; {
		select {
		case <-w.wake:
		case <-w.closing:
			last = true
		}
		w.mu.Lock()
		data, failed := w.queue, w.err != nil
		w.queue = nil
		w.mu.Unlock()
		if len(data) > 0 && !failed {
			if _, err := f.Write(data); err != nil { // half a record may be there: no more can follow
				w.fail(err)
			}
		}
		select {
		case <-time.After(interval):
		case <-w.closing:
		}
	}
	if err := f.Close(); err != nil {
		w.fail(err)
	}
}

func (w *Writer) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = errors.Join(w.err, fmt.Errorf("tensorboard: the event file is not whole, and the run goes on: %w", err))
}
