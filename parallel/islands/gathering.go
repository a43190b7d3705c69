// SPDX-License-Identifier: Apache-2.0

package islands

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/ctxerr"
)

// gathering is what an island reads of an exchange before it is decided: each payload is on its way
// as soon as it is posted, so that a slow link costs no round trip for it afterwards.
type gathering struct {
	i      *Island
	n      int
	ctx    context.Context
	cancel context.CancelFunc
	of     map[member]*arrival
	open   sync.WaitGroup
}

// arrival is what a member has posted.
type arrival struct {
	done    chan struct{}
	payload []byte // of this part; none of this island's own
	digest  uint32
	err     error
}

func (i *Island) gather(ctx context.Context, n int) *gathering {
	g := &gathering{i: i, n: n, of: make(map[member]*arrival)}
	g.ctx, g.cancel = context.WithCancel(ctx)
	return g
}

// end waits until nothing is under way any more.
func (g *gathering) end() {
	g.cancel()
	g.open.Wait()
}

// want reads what islands post, and waits for all parts of this one.
func (g *gathering) want(who []member) {
	if me := g.i.me(); g.i.c.Parts > 1 && g.of[me] == nil {
		g.begin(me)
	}
	for _, m := range who {
		if g.of[m] == nil {
			g.begin(m)
		}
	}
}

func (g *gathering) begin(m member) {
	a := &arrival{done: make(chan struct{})}
	g.of[m] = a
	var others []string // parts
	for part := range g.i.c.Parts {
		if part != g.i.c.Part {
			others = append(others, g.i.beside(g.n, m, part))
		}
	}
	g.open.Go(func() {
		defer close(a.done)
		if m != g.i.me() {
			a.payload, a.digest, a.err = g.i.get(g.ctx, g.i.data(g.n, m, g.i.c.Part), g.i.beside(g.n, m, g.i.c.Part))
		}
		if a.err == nil && len(others) > 0 {
			a.err = g.i.store.Wait(g.ctx, others...)
		}
	})
}

// get returns what a member has posted.
func (g *gathering) get(ctx context.Context, i *Island, n int, m member) (payload []byte, digest uint32, err error) {
	if g != nil && m != i.me() {
		if a := g.of[m]; a != nil {
			select {
			case <-a.done:
				return a.payload, a.digest, a.err
			case <-ctx.Done():
				return nil, 0, ctxerr.Of(ctx)
			}
		}
	}
	return i.get(ctx, i.data(n, m, i.c.Part), i.beside(n, m, i.c.Part))
}

// next returns one that is wanted of which not all has come, nil if there is none.
func (g *gathering) next(who []member) (*arrival, error) {
	for _, m := range append(who[:len(who):len(who)], g.i.me()) {
		a := g.of[m]
		if a == nil {
			continue // this island itself, if it is one part
		}
		select {
		case <-a.done:
			if a.err != nil {
				return nil, a.err
			}
		default:
			return a, nil
		}
	}
	return nil, nil
}

// unposted returns the islands that are wanted and of which not all has come.
func (g *gathering) unposted(who []member) (of []int) {
	for _, m := range who {
		select {
		case <-g.of[m].done:
		default:
			of = append(of, m.Island)
		}
	}
	return of
}

// posted waits until all islands that take part have posted, and returns those that have.
func (i *Island) posted(ctx context.Context, n int, g *gathering) ([]member, error) {
	begun := time.Now()
	var who, late []member
	tick := time.NewTicker(i.c.Silence / 8)
	defer tick.Stop()
	hurry := false
	for i.late = nil; ; {
		if err := i.watch.ousted(); err != nil {
			return nil, err
		}
		who = i.watch.expected(hurry)
		g.want(who)
		a, err := g.next(who)
		if err != nil {
			return nil, err
		}
		if a == nil {
			break
		}
		select {
		case <-a.done:
			continue
		case <-i.hurry:
			hurry = true
			continue
		case <-ctx.Done():
			return nil, ctxerr.Of(ctx)
		case <-tick.C:
		}
		if took := time.Since(begun); hurry || took > 8*i.c.Silence { // before, perhaps nobody stands still
			i.tells.look(Wait{g.unposted(who), n, took, i.c.Patience})
		}
		if time.Since(begun) > i.c.Patience {
			late = who
			break
		}
		// Others may have decided: they know of a birth or a death that this island has not seen.
		if decided, err := i.store.NumKeys(ctx, i.key("round", n)+"/"); err != nil {
			return nil, err
		} else if decided > 0 {
			late = []member{}
			break
		}
	}
	if late == nil && len(who) == i.c.Islands-1 { // which is the usual case
		members := append(who, i.me())
		slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.Island, b.Island) })
		return members, nil
	}
	members, err := i.present(ctx, n)
	if err == nil && !slices.Contains(members, i.me()) {
		err = fmt.Errorf("not all %d parts of this island have posted within %v: is one of its ranks slow?", i.c.Parts, i.c.Patience)
	}
	for _, m := range late {
		if !slices.Contains(members, m) {
			i.late = append(i.late, m.Island)
		}
	}
	return members, err
}

// present returns the islands all of whose parts have posted.
func (i *Island) present(ctx context.Context, n int) (members []member, err error) {
	all := i.watch.all()
	there, errs := make([]int, len(all)), make([]error, len(all))
	var asked sync.WaitGroup
	for at, m := range all {
		asked.Go(func() {
			there[at], errs[at] = i.store.NumKeys(ctx, i.key("post", n, m.Island, m.Birth)+"/")
		})
	}
	asked.Wait()
	for at, m := range all {
		if errs[at] != nil {
			return nil, errs[at]
		}
		if there[at] == i.c.Parts {
			members = append(members, m)
		}
	}
	return members, nil
}

// Hurry says that somebody waits for the exchange under way: islands that have shown no life for half
// of the silence are left out of it. They take part in the next one, with all that they have learned.
func (i *Island) Hurry() {
	select {
	case i.hurry <- struct{}{}:
	default:
	}
}
