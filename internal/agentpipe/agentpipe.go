// SPDX-License-Identifier: Apache-2.0

// Package agentpipe is the pipe from an agent to each of its workers. The agent is the process
// that has launched the ranks of a node; the workers are these ranks. The agent tells them two
// kinds of things: that another local worker has failed, and that it wants the worker's flight
// recorder or its figures. A rank that waits for a dead peer learns from its socket that the peer is gone.
// Only the agent, the parent of the peer, knows by which signal.
//
// The agent makes one pipe for each worker with [Pipe]. The worker inherits the reading end
// as the descriptor that [envvar.AgentFD] names, and opens it with [Open]. The pipe carries
// lines of JSON, one [Event] a line:
//
//	{"event":"exited","rank":1,"local_rank":1,"pid":4711,"host":"h","code":-1,"signal":"killed"}
//	{"event":"dump","request":1}
//
// A worker need not read the pipe: [Writer.Send] does not wait for it. The end of the stream
// means that the agent itself has ended. A process has one reader, because two readers would
// each get a part of the events. A reader skips events of unknown kinds, so that an agent may
// be newer than its workers.
package agentpipe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// MaxLine is the largest length of an encoded event, with its line feed. Linux writes so many
// bytes to a pipe in one piece, so that a full pipe never holds half an event.
const MaxLine = 4096

// sendPatience is how long Send waits if the pipe is full (64 KiB on Linux, some 400 events)
// because the worker does not read.
const sendPatience = 20 * time.Millisecond

// KindExited says that a local worker has ended with a code other than 0, or by a signal.
const KindExited = "exited"

// KindDump asks a worker to write the dump of its flight recorder into the directory that
// [envvar.RecorderDir] names. The dump says which Request it answers.
const KindDump = "dump"

// KindFigures asks a worker to write its figures, in a file event.FileName of the same directory.
const KindFigures = "figures"

// Event is one message of the agent. Which fields are set depends on Kind.
type Event struct {
	Kind      string `json:"event"`
	Rank      int    `json:"rank"`
	LocalRank int    `json:"local_rank"`
	PID       int    `json:"pid"`
	Host      string `json:"host"`
	Code      int    `json:"code"`              // exit code, -1 when a signal ended the process
	Signal    string `json:"signal,omitempty"`  // "killed", "segmentation fault", …; empty for an exit
	Request   uint64 `json:"request,omitempty"` // of KindDump and KindFigures: its number, from 1
}

// String describes the event for an error message: `rank 1 (host h, pid 4711) ended by signal: killed`.
func (e Event) String() string {
	who := fmt.Sprintf("rank %d (host %s, pid %d)", e.Rank, e.Host, e.PID)
	switch {
	case e.Kind == KindDump:
		return fmt.Sprintf("the agent asks for a dump (request %d)", e.Request)
	case e.Kind == KindFigures:
		return fmt.Sprintf("the agent asks for figures (request %d)", e.Request)
	case e.Kind != KindExited:
		return fmt.Sprintf("%s: %s", who, e.Kind)
	case e.Signal != "":
		return fmt.Sprintf("%s ended by signal: %s", who, e.Signal)
	default:
		return fmt.Sprintf("%s exited with code %d", who, e.Code)
	}
}

// Writer is the agent's end of one worker's pipe. It is safe for concurrent use.
type Writer struct {
	mu sync.Mutex
	f  *os.File
}

// Pipe makes a pipe. The worker inherits the file: the caller passes it on and then closes it.
// The agent keeps the Writer.
func Pipe() (worker *os.File, agent *Writer, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("agentpipe: %w", err)
	}
	return r, &Writer{f: w}, nil
}

// Send writes one event. If the worker does not read, the event is lost, and the error is
// os.ErrDeadlineExceeded. If the worker has ended, the error is syscall.EPIPE.
func (w *Writer) Send(e Event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("agentpipe: %w", err)
	}
	if len(line)+1 > MaxLine {
		return fmt.Errorf("agentpipe: event of %d bytes, at most %d fit a line", len(line)+1, MaxLine)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// Some systems have no deadlines for pipes. There, Write may block.
	_ = w.f.SetWriteDeadline(time.Now().Add(sendPatience))
	if _, err := w.f.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("agentpipe: tell a worker that %v: %w", e, err)
	}
	return nil
}

// Close ends the stream; the worker then reads io.EOF.
func (w *Writer) Close() error { return w.f.Close() }

// Reader is the worker's end. [Reader.Next] is for one goroutine;
// [Reader.Close] may be called from any.
type Reader struct {
	f io.ReadCloser
	b *bufio.Reader
}

// Open returns the pipe from the agent that has launched this process. It returns nil and no
// error if there is no pipe: the variable is not set, or its descriptor is not an open pipe. A
// wrapper, for instance, may have passed the environment on, but not the descriptors. A
// process may call Open once.
func Open() (*Reader, error) {
	if !envvar.AgentFD.IsSet() {
		return nil, nil
	}
	fd, err := envvar.AgentFD.Int(0, math.MaxInt32)
	if err != nil {
		return nil, fmt.Errorf("agentpipe: no descriptor of the agent (unset the variable to go on without it): %w", err)
	}
	f := openPipe(fd)
	if f == nil {
		return nil, nil
	}
	return NewReader(f), nil
}

// NewReader reads events from any stream and owns it from then on.
func NewReader(f io.ReadCloser) *Reader {
	return &Reader{f: f, b: bufio.NewReaderSize(f, MaxLine)}
}

// Next waits for the next event. The error is io.EOF if the agent has ended, and
// os.ErrClosed after Close. A line that is too long, or no event, is an error too; the next
// call reads the line after it.
func (r *Reader) Next() (Event, error) {
	line, err := r.b.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		n := len(line)
		for errors.Is(err, bufio.ErrBufferFull) {
			line, err = r.b.ReadSlice('\n')
			n += len(line)
		}
		if err == nil {
			return Event{}, fmt.Errorf("agentpipe: a line of %d bytes, at most %d are allowed", n, MaxLine)
		}
	}
	if err != nil {
		return Event{}, err // half a line at the end is not an event
	}
	var e Event
	if err := json.Unmarshal(line, &e); err != nil {
		return Event{}, fmt.Errorf("agentpipe: line %q: %w", bytes.TrimSpace(line[:min(len(line), 80)]), err)
	}
	if e.Kind == "" {
		return Event{}, fmt.Errorf("agentpipe: line %q names no event", bytes.TrimSpace(line[:min(len(line), 80)]))
	}
	return e, nil
}

// Close ends a waiting Next and releases the descriptor.
func (r *Reader) Close() error { return r.f.Close() }
