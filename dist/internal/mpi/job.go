// SPDX-License-Identifier: Apache-2.0

package mpi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/dist/internal/collective"
	"github.com/cohort-ml/cohort/dist/internal/meeting"
	"github.com/cohort-ml/cohort/dist/internal/native"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// job is this process's part in the MPI's job.
type job struct {
	lib    *Library
	rank   int
	size   int
	port   *transport.HeldPort // rank 0: at which the store will listen
	failed atomic.Bool         // a group has failed: the MPI is not finalized

	mu   sync.Mutex
	left []any // memory that calls of the MPI may still write
}

// leave keeps memory for as long as the process lives.
func (j *job) leave(memory ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.left = append(j.left, memory...)
}

// left keeps the memory of jobs with calls that have not ended: the MPI may write it for as
// long as the process lives.
var left struct {
	mu   sync.Mutex
	jobs []*job
}

// Start is the [backend.Start] of jobs that mpirun or srun has started.
func Start(ctx context.Context, s *backend.Settings) (backend.Job, error) {
	j, err := begin(s)
	if err != nil {
		return nil, fmt.Errorf("backend %q: %w", "mpi", err)
	}
	carried := &meeting.Carried{Backend: "mpi", Rank: j.rank, WorldSize: j.size, Open: j.carrier, Close: j.close}
	if j.size > 1 {
		if err := j.agreeWhere(ctx, carried); err != nil {
			return nil, fmt.Errorf("backend %q: %w", "mpi", err)
		}
	}
	return meeting.StartCarried(s, carried)
}

// begin checks what an MPI needs, loads it and initialises it.
func begin(s *backend.Settings) (*job, error) {
	switch {
	case s.URL != "" || s.WorldSize != 0:
		return nil, errors.New("the MPI says which rank this process is: leave out WithURL and WithRank")
	case s.Store != nil:
		return nil, errors.New("the ranks of an MPI meet by the MPI: leave out WithStore")
	case s.PyTorch != "":
		return nil, errors.New(`WithPyTorch is about jobs with PyTorch ranks, which WithBackend("gloo") makes`)
	}
	by := launcher()
	if by.name == "" {
		hint := "start the program by mpirun -n N PROGRAM, by srun --mpi=pmix PROGRAM, or by cohort run --mpi --nproc-per-node N PROGRAM"
		if envvar.WorldSize.IsSet() {
			hint = "its launcher is cohort run or torchrun, which no MPI knows: " + hint
		}
		if envvar.UnderSlurm() {
			hint = "srun has started it without an MPI: " + srunHint
		}
		return nil, fmt.Errorf("this process was not started by the launcher of an MPI: %s", hint)
	}
	lib, err := Load()
	if err != nil {
		return nil, err
	}
	if err := lib.initialise(); err != nil {
		return nil, err
	}
	j := &job{lib: lib}
	rank, size := new(pin), new(pin)
	if err := lib.call("Comm_rank", lib.fn.commRank, lib.abi.world, rank.address()); err != nil {
		return nil, err
	}
	if err := lib.call("Comm_size", lib.fn.commSize, lib.abi.world, size.address()); err != nil {
		return nil, err
	}
	j.rank, j.size = int(rank.number()), int(size.number())
	if by.size > 1 && j.size == 1 {
		do := "start the program by the mpirun of this library"
		if envvar.UnderSlurm() {
			do = srunHint
		}
		return nil, fmt.Errorf("the launcher of this process started %d ranks (%s), but %s (%s) sees this one alone: the launcher belongs to another MPI, or to another version; %s, or name the launcher's library in %s", by.size, by.name, lib.Name, lib.Version, do, envvar.MPI)
	}
	return j, nil
}

// srunHint says how Slurm starts ranks of an MPI.
const srunHint = "start the program by srun --mpi=pmix for Open MPI, by srun --mpi=pmi2 for MPICH"

// where is what rank 0 tells the others by the MPI.
type where struct {
	Master, Token string
	Error         string // why there is no such place
}

// maxWhere bounds the text of where.
const maxWhere = 4096

// agreeWhere has the ranks agree on a token and on where rank 0 will listen. The MPI moves
// both: whoever can read its network can read its data too.
func (j *job) agreeWhere(ctx context.Context, c *meeting.Carried) error {
	node := collective.KeyNumber(meeting.NodeID(""))
	text := make([]byte, maxWhere)
	numbers := &check{mine: [2]uint64{node, ^node}}
	lib := j.lib
	err := lib.call("Allreduce", lib.fn.allreduce, uintptr(unsafe.Pointer(&numbers.mine)), uintptr(unsafe.Pointer(&numbers.all)), 2, lib.abi.number, lib.abi.max, lib.abi.world)
	if err != nil {
		return err
	}
	if j.rank == 0 {
		near := numbers.all == numbers.mine && meeting.NodeID("") != ""
		said, err := json.Marshal(j.choose(ctx, near))
		if err != nil {
			return err
		}
		copy(text, said)
	}
	if err := lib.call("Bcast", lib.fn.bcast, address(text), maxWhere, lib.abi.bySize[1], 0, lib.abi.world); err != nil {
		return err
	}
	var at where
	if err := json.Unmarshal(bytes.TrimRight(text, "\x00"), &at); err != nil {
		return fmt.Errorf("what rank 0 said of where it listens: %w", err)
	}
	if at.Error != "" {
		return fmt.Errorf("rank 0 cannot listen for the others: %s", at.Error)
	}
	c.Master = at.Master
	c.Token, err = transport.ParseToken(at.Token)
	return err
}

// choose chooses where rank 0 listens: at the loopback interface if all ranks are near.
func (j *job) choose(ctx context.Context, near bool) where {
	token, err := transport.TokenFromEnv()
	if errors.Is(err, transport.ErrNoToken) {
		token, err = transport.NewToken(), nil
	}
	if err != nil {
		return where{Error: err.Error()}
	}
	host := "127.0.0.1"
	if !near || envvar.Interface.IsSet() {
		choice, err := transport.ChooseInterface(ctx, "192.0.2.1:9") // the route to most of the world
		if err != nil {
			return where{Error: err.Error()}
		}
		host = choice.Host
	}
	if j.port, err = transport.HoldPort(host); err != nil {
		return where{Error: err.Error()}
	}
	_, port, err := net.SplitHostPort(j.port.Addr())
	if err != nil {
		return where{Error: err.Error()}
	}
	return where{Master: net.JoinHostPort(host, port), Token: token.Text()}
}

// carrier opens the communicator of a group. The members wait for each other in the store
// first: a wait in the MPI keeps a processor busy, and no context ends it.
func (j *job) carrier(ctx context.Context, s *backend.Spec) (native.Carrier, error) {
	keys := make([]string, len(s.World))
	for r := range keys {
		keys[r] = "mpi/" + strconv.Itoa(r)
	}
	if err := s.Store.Set(ctx, keys[s.Rank], []byte{1}); err != nil {
		return nil, err
	}
	if s.Rank == 0 {
		if _, err := s.Store.MultiGet(ctx, keys...); err != nil {
			return nil, err
		}
		if err := s.Store.Set(ctx, "mpi/all", []byte{1}); err != nil {
			return nil, err
		}
	}
	if _, err := s.Store.Get(ctx, "mpi/all"); err != nil {
		return nil, err
	}
	c, err := j.open(native.NewStop(ctx), s.World, s.Rank, collective.KeyNumber(s.Key))
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, err
	}
	return c, nil
}

// finalizeLimit is how long this rank waits for others at the end of a job that has not
// failed.
const finalizeLimit = 30 * time.Minute

// close ends the MPI of this process, unless the job has failed: then some rank is gone or
// waits for ever, and the launcher ends the ranks when this process ends.
func (j *job) close(pending bool) error {
	if j.port != nil {
		j.port.Close()
	}
	if pending || j.failed.Load() {
		left.mu.Lock()
		left.jobs = append(left.jobs, j)
		left.mu.Unlock()
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- j.lib.finalise() }()
	limit := time.NewTimer(finalizeLimit)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-limit.C:
		return fmt.Errorf("backend %q: rank %d has left the job, and not all others have within %v", "mpi", j.rank, finalizeLimit)
	}
}
