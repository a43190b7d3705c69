// SPDX-License-Identifier: Apache-2.0

package native

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cohort-ml/cohort/dist/fault"
	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/mem"
	"github.com/cohort-ml/cohort/internal/transport"
)

// SharedMemory reports whether processes of one node can share memory on this
// system.
const SharedMemory = sharedMemory

// OpenShm forms a group of processes of one node that share memory. They reach each other by
// the unix sockets of a fabric. OpenShm returns when this rank has the control segment. Others
// may still be on their way; the first collective waits for them.
func OpenShm(ctx context.Context, cfg Config, fabric *Fabric) (*Shm, error) {
	n := len(cfg.Members)
	p := &process{cfg: cfg, fabric: fabric, incoming: make([][numPipeUses]chan *pipe, n)}
	for r := range p.incoming {
		for use := range p.incoming[r] {
			p.incoming[r][use] = make(chan *pipe, 1)
		}
	}
	s := &Shm{cfg: cfg, n: n, gone: make([]atomic.Bool, n), park: newProcessParking(max(n, cfg.NumLocal)), scratch: newScratch(n)}
	s.whole, s.endWhole = context.WithCancel(context.Background())
	p.shm = s
	p.slabs = newSlabSpace(p.fetch)
	p.star = newStar(&p.cfg, s.Report, s.reportLeft)
	p.star.known = s.knownFault
	s.space, s.pipes.open, s.pipes.opened, s.onClose = p.slabs, p.openPipe, p.openedPipe, p.close
	s.ask = p.star.ask
	s.askWhere = func(rank int, stop <-chan struct{}) fault.Doing { return p.star.askFor(rank, askWhere, stop) }
	s.onFault, s.settle, p.star.past = p.star.spread, p.star.settled, s.past.call
	s.beats = p.star.beats
	if err := p.meet(ctx); err != nil {
		p.why = p.cfg.reason(err)
		var other *fault.RankError
		if errors.As(err, &other) && cfg.Rank == 0 { // members that have come wait for this rank
			p.star.spread(p.cfg.faultOf(err))
		}
		p.star.giveUp(p.why)
		if p.end != nil {
			p.end.fail(p.why)
		}
		_ = p.close()
		return nil, err
	}
	return s, nil
}

// process is what a rank that is a process has beside its Shm: its socket, the star, and the
// mappings.
type process struct {
	cfg     Config
	shm     *Shm
	fabric  *Fabric
	end     *Endpoint // nil until this rank can answer
	why     string    // the group could not be made
	star    *star
	slabs   *slabSpace
	segment *mem.Slab // the hub's own
	mapped  []byte    // a spoke's mapping of it

	incoming [][numPipeUses]chan *pipe // pipes that peers have opened to this rank
}

// meet gets the control segment, which the hub makes and hands to all spokes.
func (p *process) meet(ctx context.Context) error {
	n := len(p.cfg.Members)
	size := segmentSize(n)
	if p.cfg.Rank == 0 {
		var err error
		if p.segment, err = mem.NewSlab(size); err != nil {
			return fmt.Errorf("dist: control segment: %w", err)
		}
		p.shm.seg = newSegment(p.segment.Bytes(), n)
		if p.end, err = p.fabric.attach(p.cfg.Key, n, p.serve); err != nil {
			return err
		}
		defer p.fabric.askAbsent(ctx, &p.cfg, func(int) route { return overUnix }, p.star.absent, p.star.mute)()
		return p.star.awaitSpokes(ctx)
	}
	ctx, stop := p.fabric.withHub(ctx, &p.cfg, func(int) route { return overUnix })
	defer stop()
	var conn *transport.Conn
	var err error
	for try := 1; ; try++ {
		if conn, err = p.dial(ctx, 0, forControl, p.cfg.Agreed); err == nil {
			err = conn.Do(ctx, func() error { return p.takeSegment(conn, size) })
		}
		if !hungUp(ctx, err) || try == maxJoins {
			break
		}
		if conn != nil {
			conn.Close()
		}
		time.Sleep(joinPause)
	}
	if conn == nil {
		return p.star.lostHub(ctx, nil, err)
	}
	if err == nil {
		p.shm.seg, err = openSegment(p.mapped, n)
	}
	if err == nil {
		err = p.star.join(0, conn, nil)
	}
	if err != nil {
		return p.star.lostHub(ctx, conn, fmt.Errorf("dist: join group %q at %v: %w", p.cfg.Group, p.cfg.Members[0], err))
	}
	p.end, err = p.fabric.attach(p.cfg.Key, n, p.serve)
	return err
}

func (p *process) takeSegment(conn *transport.Conn, size int) error {
	kind, payload, err := conn.ReadFrame(nil, maxControl)
	if err != nil {
		return err
	}
	if kind != frameSegment {
		return refusal(payload)
	}
	fd, err := conn.RecvFD()
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := checkSize(fd, size); err != nil {
		return err
	}
	p.mapped, err = mem.MapSlab(fd, size)
	return err
}

// dial connects to a peer's socket and sends a hello.
func (p *process) dial(ctx context.Context, peer int, why purpose, number uint64) (*transport.Conn, error) {
	conn, err := p.fabric.dial(ctx, p.cfg.World[peer], overUnix, hello{purpose: why, rank: p.cfg.Rank, number: number, group: p.cfg.Key})
	if err != nil {
		return nil, fmt.Errorf("dist: group %q: connect to %v: %w", p.cfg.Group, p.cfg.Members[peer], err)
	}
	return conn, nil
}

// serve answers one connection to this rank's socket and reports whether to keep it.
func (p *process) serve(conn *transport.Conn, h hello) (keep bool) {
	var err error
	switch h.purpose {
	case forControl:
		keep, err = p.admit(conn, h)
	case forSlab:
		err = p.giveSlab(conn, h.number)
	case forPipe:
		err = p.takePipe(conn, h.rank, h.number)
	default:
		err = fmt.Errorf("a connection of unknown purpose %d", h.purpose)
	}
	if err != nil {
		refuse(conn, err)
	}
	return keep
}

// admit gives a spoke the control segment and keeps its connection.
func (p *process) admit(conn *transport.Conn, h hello) (bool, error) {
	if err := p.star.mayJoin(h); err != nil {
		return false, err
	}
	if err := p.star.join(h.rank, conn, func() error {
		defer func() { _ = conn.SetDeadline(time.Time{}) }()
		return conn.SendFD(frameSegment, p.segment.FD)
	}); err != nil {
		return false, err
	}
	return true, nil
}

func (p *process) giveSlab(conn *transport.Conn, id uint64) error {
	fd, size, err := p.slabs.slab(id)
	if err != nil {
		return err
	}
	return conn.SendFD(frameSlab, fd, binary.LittleEndian.AppendUint64(nil, uint64(size)))
}

// fetch asks a peer for one of its slabs.
func (p *process) fetch(ctx context.Context, peer int, id uint64) (fd, size int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.shm.whole, cancel)() // a dead peer will not answer
	conn, err := p.dial(ctx, peer, forSlab, id)
	if err != nil {
		return 0, 0, &unreachableError{err}
	}
	defer conn.Close()
	err = conn.Do(ctx, func() error {
		kind, payload, err := conn.ReadFrame(nil, maxControl)
		if err != nil {
			return &unreachableError{err}
		}
		if kind != frameSlab || len(payload) != 8 {
			return fmt.Errorf("%v refused: %s", p.cfg.Members[peer], payload)
		}
		size = int(binary.LittleEndian.Uint64(payload))
		fd, err = conn.RecvFD()
		return err
	})
	return fd, size, err
}

// openPipe makes the pipe to a peer and hands it over, or waits for the pipe from a peer.
func (p *process) openPipe(ctx context.Context, c *operation.Call, key pipeKey) (*pipe, error) {
	if !key.outgoing {
		return p.awaitPipe(ctx, c, key)
	}
	slab, err := mem.NewSlab(int(unsafe.Sizeof(pipeBlock{})))
	if err != nil {
		return nil, fmt.Errorf("dist: message pipe to %v: %w", p.cfg.Members[key.peer], err)
	}
	limit, cancel := p.cfg.withLimit(ctx, c)
	defer cancel()
	defer context.AfterFunc(p.shm.whole, cancel)() // a dead peer will not answer
	if err := p.handOver(limit, slab, key); err != nil {
		_ = slab.Close()
		if reason := p.shm.unreached(ctx, c, key.peer, err); reason != nil {
			return nil, reason
		}
		return nil, err
	}
	return &pipe{block: (*pipeBlock)(slab.Pointer()), close: slab.Close}, nil
}

func (p *process) handOver(ctx context.Context, slab *mem.Slab, key pipeKey) error {
	conn, err := p.dial(ctx, key.peer, forPipe, uint64(key.use))
	if err != nil {
		return &unreachableError{err}
	}
	defer conn.Close()
	return conn.Do(ctx, func() error {
		if err := conn.SendFD(framePipe, slab.FD); err != nil {
			return &unreachableError{err}
		}
		kind, payload, err := conn.ReadFrame(nil, maxControl)
		if err != nil {
			return &unreachableError{err}
		}
		if kind != frameDone {
			return fmt.Errorf("dist: message pipe: %v refused: %s", p.cfg.Members[key.peer], payload)
		}
		return nil
	})
}

// takePipe takes a pipe that a peer has made.
func (p *process) takePipe(conn *transport.Conn, peer int, use uint64) error {
	if use >= uint64(numPipeUses) {
		return fmt.Errorf("a pipe of unknown use %d", use)
	}
	kind, _, err := conn.ReadFrame(nil, 0)
	if err != nil || kind != framePipe {
		return errors.New("no pipe came with the connection")
	}
	fd, err := conn.RecvFD()
	if err != nil {
		return err
	}
	defer closeFD(fd)
	size := int(unsafe.Sizeof(pipeBlock{}))
	if err := checkSize(fd, size); err != nil {
		return err
	}
	data, err := mem.MapSlab(fd, size)
	if err != nil {
		return err
	}
	in := &pipe{block: (*pipeBlock)(unsafe.Pointer(unsafe.SliceData(data))), close: func() error { return mem.Unmap(data) }}
	select {
	case p.incoming[peer][use] <- in:
		return conn.WriteFrame(frameDone)
	default:
		_ = in.close()
		return fmt.Errorf("rank %d has opened this pipe before", peer)
	}
}

// openedPipe returns the pipe that a peer has handed over, nil if it has not.
func (p *process) openedPipe(key pipeKey) *pipe {
	select {
	case in := <-p.incoming[key.peer][key.use]:
		return in
	default:
		return nil
	}
}

// awaitPipe waits for the pipe that a peer opens when it first sends.
func (p *process) awaitPipe(ctx context.Context, c *operation.Call, key pipeKey) (*pipe, error) {
	came := p.incoming[key.peer][key.use]
	tick := time.NewTicker(nap)
	defer tick.Stop()
	for {
		select {
		case in := <-came:
			return in, nil
		default:
		}
		if err := p.shm.trouble(ctx, c, key.peer); err != nil {
			select {
			case in := <-came: // it came before the trouble
				return in, nil
			default:
				return nil, err
			}
		}
		select {
		case in := <-came:
			return in, nil
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// close gives everything back. No call runs any more.
func (p *process) close() error {
	p.shm.endWhole()
	p.star.close()
	if p.end != nil {
		p.end.Close()
	} else {
		p.fabric.Forget(p.cfg.Key, p.why)
	}
	errs := []error{p.shm.pipes.closeAll(), p.slabs.close()}
	for _, uses := range p.incoming {
		for _, came := range uses {
			select {
			case in := <-came:
				errs = append(errs, in.close())
			default:
			}
		}
	}
	p.shm.detach()
	if p.segment != nil {
		errs = append(errs, p.segment.Close())
	}
	if p.mapped != nil {
		errs = append(errs, mem.Unmap(p.mapped))
	}
	return errors.Join(errs...)
}
