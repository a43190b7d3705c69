// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// Journal keeps what a server has acknowledged. Package journal has one that writes to a
// disk. One goroutine calls Append; Snapshot is called beside it.
type Journal interface {
	// ID is a random number of this journal's data.
	ID() uint64
	// Recover gives back what was kept, before anything is appended: restore gets the state
	// of the last snapshot, if there is one, and returns the tables for its rows; entry then
	// gets the entries behind that state, in order.
	Recover(restore func(state []byte) ([]*rows.Table, error), entry func(lsn uint64, entry []byte) error) error
	// Append keeps entries, which get the numbers from first on. If it fails, none is kept.
	Append(entries ...[]byte) (first uint64, err error)
	// Snapshot keeps the state of an LSN, and the rows of tables of then or later.
	Snapshot(ctx context.Context, lsn uint64, state []byte, tables []*rows.Table) error
	// Unsaved is how many bytes were kept behind the last snapshot.
	Unsaved() int64
}

// addressKey is under which a server publishes its address.
func addressKey(index int) string { return "ps/" + strconv.Itoa(index) }

// Server is one of the servers of a job. It answers until [Server.Close].
type Server struct {
	agent   *rpc.Agent
	index   int
	count   int
	routing *Routing
	journal Journal
	store   store.Store
	want    settings
	history uint64
	process uint64 // of this process

	state   *state   // of the writer
	took    int      // of the writer: turns
	looked  []uint64 // by table: the step at which the writer last looked for rows that should leave
	turns   turns
	stopped chan struct{} // closed when nobody writes any more
	view    atomic.Pointer[view]
	failed  atomic.Pointer[Error] // why it answers nothing any more
	counts  counts
	keeper  keeper

	stopOnce sync.Once

	life  sync.RWMutex // held by those who read the tables
	ended bool         // the tables are no more

	mu      sync.Mutex
	refused map[int]*Error // by worker: its last push was refused
	heard   map[int]string // by worker: the client's name
}

// view is what handlers see of the state. It does not change; changed is closed when there
// is a later one.
type view struct {
	set     settings
	byName  map[string]*rows.Table
	number  map[string]int
	tables  []*rows.Table
	lsn     uint64
	step    uint64
	applied int64
	next    []int64
	left    []bool
	batches uint64
	inBatch []int // workers whose pushes wait for a batch
	changed chan struct{}
}

// Serve makes an agent the server of a number, 0 to one less than servers. The agent may
// serve other methods, but can be one server only.
func Serve(ctx context.Context, a *rpc.Agent, index, servers int, opts ...Option) (*Server, error) {
	s := &Server{agent: a, index: index, count: servers, history: rand.Uint64(), process: rand.Uint64() | 1,
		stopped: make(chan struct{}), refused: map[int]*Error{}, heard: map[int]string{}}
	fail := func(err error) (*Server, error) {
		return nil, fmt.Errorf("ps: server %d of %d: %w", index, servers, err)
	}
	var err error
	if s.routing, err = NewRouting(servers); err != nil {
		return nil, err
	}
	if index < 0 || index >= servers {
		return fail(fmt.Errorf("want a number from 0 to %d", servers-1))
	}
	o, err := applyOptions(servers, opts)
	if err == nil && o.forClient != "" {
		err = fmt.Errorf("%s is an option of Dial", o.forClient)
	}
	if err != nil {
		return fail(err)
	}
	s.want, s.journal, s.store, s.keeper.most = o.want, o.journal, o.store, o.logLimit
	s.state = newState(s.routing, index, o.dir)
	err = s.recover()
	if err == nil && o.progress != nil {
		err = s.goOn(o.progress)
	}
	if err == nil {
		err = know(a)
	}
	if err != nil {
		_ = s.state.close() // the error that comes first says more
		return fail(err)
	}
	s.publish()
	s.keeper.begin(context.WithoutCancel(ctx))
	err = a.Offer(
		rpc.Serve(openMethod, s.open),
		rpc.Serve(servedPull, s.pull, rpc.WithTransient()),
		rpc.Serve(servedPush, s.push, rpc.WithTransient()),
		rpc.Serve(leaveMethod, s.leave),
		rpc.Serve(statusMethod, s.status),
		rpc.Serve(snapMethod, s.snapshot),
		rpc.Serve(beginMethod, s.begin),
		rpc.Serve(insertMethod, s.insert, rpc.WithTransient()),
		rpc.Serve(lookupMethod, s.lookup, rpc.WithTransient()),
	)
	if err == nil && s.store != nil {
		err = s.store.Set(ctx, addressKey(index), []byte(a.VisitAddr()))
	}
	if err != nil {
		s.Close()
		return fail(err)
	}
	return s, nil
}

// recover makes the state what the journal says, and then what the options say.
func (s *Server) recover() error {
	if s.journal != nil {
		s.history = s.journal.ID()
		// The journal turns to an older snapshot if the newest one is damaged.
		err := s.journal.Recover(func(state []byte) ([]*rows.Table, error) {
			s.state.close()
			s.state = newState(s.routing, s.index, s.state.dir)
			err := s.state.restore(state)
			return s.state.tables, err
		}, func(lsn uint64, b []byte) error {
			e, err := decodeEntry(b)
			if err == nil {
				err = s.state.apply(lsn, e)
			}
			if err != nil {
				return fmt.Errorf("entry %d of the log: %w", lsn, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if s.state.set.Servers != s.count {
			return errorf(KindSettings, "its data are of %d servers", s.state.set.Servers)
		}
	}
	all, changed, no := s.state.set.agree(s.want)
	if no != nil {
		return no
	}
	if !changed {
		return nil
	}
	if no := s.state.makeTables(&all); no != nil {
		return no
	}
	lsn, err := s.append([][]byte{append([]byte{entrySettings}, s.want.encode()...)})
	if err != nil {
		return err
	}
	return s.state.apply(lsn, &s.want)
}

// goOn makes a new server know how far the job has come.
func (s *Server) goOn(p *Progress) error {
	if err := p.fits(s.state); err != nil {
		return errorf(KindSettings, "%w", err)
	}
	lsn, err := s.append([][]byte{p.encode()})
	if err != nil {
		return err
	}
	return s.state.apply(lsn, p)
}

// append keeps entries and returns the number of the first.
func (s *Server) append(entries [][]byte) (uint64, error) {
	if s.journal == nil {
		return s.state.lsn + 1, nil
	}
	return s.journal.Append(entries...)
}

// Addr returns the address of the server, for [At].
func (s *Server) Addr() string { return s.agent.VisitAddr() }

// Tables returns the rows that the server has.
func (s *Server) Tables() []*rows.Table { return s.view.Load().tables }

// Err returns why the server answers nothing any more, nil while it does.
func (s *Server) Err() error {
	if e := s.failed.Load(); e != nil {
		return e
	}
	return nil
}

// Close ends the server. Pushes that were acknowledged have been applied. It does not
// close the agent or the journal.
func (s *Server) Close() error {
	s.failed.CompareAndSwap(nil, s.errorf(KindUnreachable, "the server has been closed"))
	if s.turns.end() {
		s.stop()
	}
	<-s.stopped
	s.keeper.end()
	s.life.Lock()
	defer s.life.Unlock()
	if s.ended {
		return nil
	}
	s.ended = true
	return s.state.close()
}

// reads lets the caller read the tables until it calls done. It returns an error if the
// server has been closed.
func (s *Server) reads() (done func(), no *Error) {
	s.life.RLock()
	if s.ended {
		s.life.RUnlock()
		return nil, s.failed.Load()
	}
	return s.life.RUnlock, nil
}

// errorf makes an error of this server.
func (s *Server) errorf(kind Kind, format string, args ...any) *Error {
	e := errorf(kind, format, args...)
	e.Server = s.index
	return e
}

// publish shows the state to handlers.
func (s *Server) publish() {
	st := s.state
	v := &view{set: st.set, tables: st.tables, lsn: st.lsn, step: st.step, applied: st.applied, batches: st.batches,
		next: append([]int64(nil), st.next...), left: append([]bool(nil), st.left...), changed: make(chan struct{})}
	for _, p := range st.batch {
		v.inBatch = append(v.inBatch, p.worker)
	}
	old := s.view.Load()
	if old != nil && len(old.tables) == len(v.tables) {
		v.byName, v.number = old.byName, old.number
	} else {
		v.byName, v.number = map[string]*rows.Table{}, map[string]int{}
		for i, t := range st.tables {
			v.byName[st.set.Tables[i].Name], v.number[st.set.Tables[i].Name] = t, i
		}
	}
	s.view.Store(v)
	if old != nil {
		close(old.changed)
	}
}

// isMet returns an error if a client has said who it is to another process.
func (s *Server) isMet(life uint64) *Error {
	if life != 0 && life != s.process {
		return s.errorf(KindUnreachable, "another process is the server now: open it again")
	}
	return nil
}

// open answers a client's first request.
func (s *Server) open(ctx context.Context, in openArgs) (openReply, error) {
	if in.Version != version {
		return openReply{}, s.errorf(KindSettings, "it speaks version %d of the protocol, not %d", version, in.Version)
	}
	if in.Server != s.index {
		return openReply{}, s.errorf(KindSettings, "it is server %d of %d, not server %d: give the addresses in the order of the servers' numbers", s.index, s.count, in.Server)
	}
	set, err := decodeSettings(in.Settings)
	if err != nil {
		return openReply{}, s.errorf(KindSettings, "%w", err)
	}
	if in.Worker < 0 {
		set.Workers, set.Consistency = 0, nil
	} else if set.Workers < 1 || in.Worker >= set.Workers {
		return openReply{}, s.errorf(KindSettings, "want a worker from 0 to one less than the number of workers, %d", set.Workers).by(in.Worker, -1)
	}
	r := &request{client: in.Client, worker: in.Worker, settings: &set}
	if err := s.do(ctx, r); err != nil {
		return openReply{}, err
	}
	if in.Worker >= 0 {
		if c := rpc.Caller(ctx); c != nil {
			s.mu.Lock()
			s.heard[in.Worker] = c.Name()
			s.mu.Unlock()
		}
	}
	return r.opened, nil
}

// leave answers a worker that makes no more steps.
func (s *Server) leave(ctx context.Context, in leaveArgs) (struct{}, error) {
	return struct{}{}, s.do(ctx, &request{client: in.Client, worker: in.Worker, leaves: true})
}

// snapshot answers the wish for a snapshot.
func (s *Server) snapshot(ctx context.Context, _ struct{}) (snapReply, error) {
	lsn, err := s.Snapshot(ctx)
	return snapReply{lsn}, err
}

// Snapshot writes a snapshot to the server's journal, beside updates, and returns the
// number of the last entry that is in it for sure.
func (s *Server) Snapshot(ctx context.Context) (lsn uint64, err error) {
	if s.journal == nil {
		return 0, s.errorf(KindStorage, "the server has no journal, so it keeps no snapshots: start it with a directory")
	}
	r := &request{saves: true}
	if err := s.do(ctx, r); err != nil {
		return 0, err
	}
	done, no := s.reads()
	if no != nil {
		return 0, no
	}
	defer done()
	if err := s.journal.Snapshot(ctx, r.lsn, r.saved, r.tables); err != nil {
		no := s.errorf(KindStorage, "snapshot: %w", err)
		s.keeper.problem.Store(no)
		return 0, no
	}
	s.keeper.problem.Store(nil)
	return r.lsn, nil
}
