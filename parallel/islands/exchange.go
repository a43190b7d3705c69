// SPDX-License-Identifier: Apache-2.0

package islands

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
)

// chunkBytes is the most that one message of a payload has: other messages on the connection wait
// as long as it takes.
const chunkBytes = 1 << 20

// mostPayload bounds what is read of a payload.
const mostPayload = 1 << 38

// Round is an exchange that has been decided.
type Round struct {
	Number   int
	Members  []int    // the islands that take part, in order
	Payloads [][]byte // of this part, by member
	// Present says that what this island has posted in the exchange is among the payloads. If it is
	// false and Members has this island, an earlier start of it took part.
	Present bool
	// Give is not "" if this island is to give its state as it is after this exchange, by
	// [Island.GiveState].
	Give string
}

// post is what stands beside a payload.
type post struct {
	Size   int
	Digest uint32 // of what the islands have alike
}

// member is an island in an exchange. An island that was started again may have posted before: what
// it has posted since its last birth counts.
type member struct {
	Island int
	Birth  int64
}

// list is what has been decided of an exchange.
type list struct {
	Members []member
	State   string `json:",omitempty"` // what an island has asked for
	By      int    `json:",omitempty"` // who gives it
}

// data and posted return the keys of what a part of an island posts.
func (i *Island) data(n int, m member, part int) string {
	return i.key("data", n, m.Island, m.Birth, part)
}

func (i *Island) beside(n int, m member, part int) string {
	return i.key("post", n, m.Island, m.Birth, part)
}

// me is this island.
func (i *Island) me() member { return member{i.c.Island, i.birth} }

// Exchange posts a payload and returns those of all members. digest is of what all islands have
// alike before the exchange. If another island has another digest, that is an error on both.
//
// A round in whose list this island is missing was decided without it, because it came late: it
// takes what the others have exchanged.
func (i *Island) Exchange(ctx context.Context, n int, payload []byte, digest uint32) (*Round, error) {
	fail := func(doing string, err error) (*Round, error) {
		return nil, i.errorf("exchange %d: %s: %w", n, doing, err)
	}
	select {
	case <-i.hurry: // for the exchange before
	default:
	}
	g := i.gather(ctx, n)
	defer g.end()
	if i.watch != nil {
		g.want(i.watch.expected(false)) // on its way while this island posts
	}
	if err := i.put(ctx, i.data(n, i.me(), i.c.Part), i.beside(n, i.me(), i.c.Part), payload, digest); err != nil {
		return fail("post", err)
	}
	if i.watch != nil {
		i.watch.posted(n)
	}
	forgotten := make(chan error, 1) // meanwhile
	go func() { forgotten <- i.forget(ctx, n-i.c.Keep) }()
	l, err := i.decided(ctx, n, g)
	old := <-forgotten
	switch {
	case err != nil:
		return fail("wait for the others", err)
	case old != nil:
		return fail("delete what is old", old)
	}
	r, err := i.read(ctx, n, l, payload, digest, g)
	if err != nil {
		return fail("read what the others have posted", err)
	}
	return r, nil
}

// put writes a payload, and what stands beside it once it is there.
func (i *Island) put(ctx context.Context, data, beside string, payload []byte, digest uint32) error {
	text, err := json.Marshal(post{len(payload), digest})
	if err != nil {
		return err
	}
	chunk := 0
	for ; len(payload) > chunkBytes; chunk++ {
		if err := i.store.Set(ctx, i.key(data, chunk), payload[:chunkBytes]); err != nil {
			return err
		}
		i.sent.Add(chunkBytes)
		payload = payload[chunkBytes:]
	}
	i.sent.Add(int64(len(payload)))
	return i.store.MultiSet(ctx, []string{i.key(data, chunk), beside}, [][]byte{payload, text})
}

// get reads what put has written, waiting until it is there.
func (i *Island) get(ctx context.Context, data, beside string) (payload []byte, digest uint32, err error) {
	both, err := i.store.MultiGet(ctx, beside, i.key(data, 0))
	if err != nil {
		return nil, 0, err
	}
	var p post
	if err := json.Unmarshal(both[0], &p); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", beside, err)
	}
	if p.Size < 0 || p.Size > mostPayload {
		return nil, 0, fmt.Errorf("%s says that there are %d bytes", beside, p.Size)
	}
	payload = both[1]
	for chunk := 1; len(payload) < p.Size; chunk++ {
		more, err := i.store.Get(ctx, i.key(data, chunk))
		if err != nil {
			return nil, 0, err
		}
		if len(more) == 0 {
			break
		}
		payload = append(payload, more...)
	}
	i.received.Add(int64(len(payload)))
	if len(payload) != p.Size {
		return nil, 0, fmt.Errorf("%s has %d bytes, and says that there are %d", data, len(payload), p.Size)
	}
	return payload, p.Digest, nil
}

// decided returns the list of the members of an exchange, which part 0 of an island makes.
func (i *Island) decided(ctx context.Context, n int, g *gathering) (l list, err error) {
	key := i.key("round", n, "list")
	var text []byte
	if i.watch == nil {
		if text, err = i.store.Get(ctx, key); err != nil {
			return l, err
		}
	} else {
		members, err := i.posted(ctx, n, g)
		if err != nil {
			return l, err
		}
		l.Members = members
		if want := i.watch.wanted(); want != "" && want != i.given {
			l.State, l.By = want, members[0].Island
		}
		mine, err := json.Marshal(l)
		if err != nil {
			return l, err
		}
		made := false
		if text, made, err = i.store.CompareAndSet(ctx, key, nil, mine); err == nil && made {
			err = i.checkKept(ctx, n, key)
		}
		if err != nil {
			return l, err
		}
	}
	if l, err = i.parse(text, n); err != nil {
		return l, err
	}
	if l.State != "" {
		i.given = l.State
	}
	if i.watch != nil {
		i.watch.partake(l.Members)
	}
	return l, nil
}

// ErrLeftBehind is the error of an island that was away from an exchange for so long that the others
// have deleted its list, with which they have gone on.
var ErrLeftBehind = errors.New("the others have gone on so far meanwhile that this exchange is not in the store any more: start this island again, and it takes their state (or let more exchanges stay, Config.Keep)")

// checkKept fails if the list of an exchange had been deleted when this island made it: then the
// others have taken another one.
func (i *Island) checkKept(ctx context.Context, n int, key string) error {
	there, err := i.store.NumKeys(ctx, "deleted")
	if err != nil || there == 0 {
		return err
	}
	text, err := i.store.Get(ctx, "deleted")
	if err != nil {
		return err
	}
	if upTo, err := strconv.Atoi(string(text)); err != nil || n > upTo {
		return err
	}
	if _, err := i.store.Delete(ctx, key); err != nil {
		return err
	}
	return ErrLeftBehind
}

// noteDeleted says that the lists up to this number are deleted. It comes before that is so.
func (i *Island) noteDeleted(ctx context.Context, upTo int) error {
	var was []byte
	for {
		now, set, err := i.store.CompareAndSet(ctx, "deleted", was, []byte(strconv.Itoa(upTo)))
		if err != nil || set {
			return err
		}
		if n, err := strconv.Atoi(string(now)); err != nil || n >= upTo {
			return err
		}
		was = now
	}
}

func (i *Island) parse(text []byte, n int) (l list, err error) {
	l = list{}
	if err := json.Unmarshal(text, &l); err != nil {
		return l, fmt.Errorf("the list of exchange %d: %w", n, err)
	}
	last := -1
	for _, m := range l.Members {
		if m.Island <= last || m.Island >= i.c.Islands {
			last = -1
			break
		}
		last = m.Island
	}
	if last < 0 {
		return l, fmt.Errorf("the list of exchange %d has the members %v, and there are %d islands", n, l.Members, i.c.Islands)
	}
	return l, nil
}

// read returns the payloads of the members, at once from all. mine is this island's own, nil if it
// has to be read as well. g has what is on its way; nil is nothing.
func (i *Island) read(ctx context.Context, n int, l list, mine []byte, digest uint32, g *gathering) (*Round, error) {
	r := &Round{Number: n, Payloads: make([][]byte, len(l.Members))}
	if l.State != "" && l.By == i.c.Island && mine != nil {
		r.Give = l.State
	}
	errs := make([]error, len(l.Members))
	var all sync.WaitGroup
	for at, m := range l.Members {
		r.Members = append(r.Members, m.Island)
		if m == i.me() && mine != nil {
			r.Payloads[at], r.Present = mine, true
			continue
		}
		all.Go(func() {
			payload, has, err := g.get(ctx, i, n, m)
			if err == nil && has != digest {
				err = fmt.Errorf("island %d has other outer parameters than this one: they have taken different exchanges, or begun with different values; end one of them, and start it again from nothing", m.Island)
			}
			r.Payloads[at], errs[at] = payload, err
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return r, nil
}

// forget deletes what this part has posted in an exchange, and part 0 the list.
func (i *Island) forget(ctx context.Context, n int) error {
	if n < -2 {
		return nil
	}
	keys := []string{i.beside(n, i.me(), i.c.Part)}
	chunks, err := i.store.NumKeys(ctx, i.data(n, i.me(), i.c.Part)+"/")
	if err != nil {
		return err
	}
	for c := range chunks {
		keys = append(keys, i.key(i.data(n, i.me(), i.c.Part), c))
	}
	if i.c.Part == 0 {
		// Earlier than payloads, so that those of a list are there.
		keys = append(keys, i.key("round", n+2, "list"))
		if err := i.noteDeleted(ctx, n+2); err != nil {
			return err
		}
	}
	for _, k := range keys {
		if _, err := i.store.Delete(ctx, k); err != nil {
			return err
		}
	}
	return nil
}
