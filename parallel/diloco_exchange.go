// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/ctxerr"
	"github.com/cohort-ml/cohort/parallel/islands"
	"github.com/cohort-ml/cohort/tensor"
)

// speaks reports whether this rank decides for its island.
func (d *DiLoCo) speaks() bool { return d.group.Rank() == 0 }

// tell gives all ranks of the island what rank 0 has, or its error.
func tell[T any](ctx context.Context, d *DiLoCo, v T, err error) (T, error) {
	type word struct {
		V   T
		Err string
	}
	if d.group.Size() == 1 {
		return v, err
	}
	w := word{V: v}
	if err != nil {
		w.Err = err.Error()
	}
	told, tellErr := dist.BroadcastObject(ctx, d.group, w, 0)
	switch {
	case err != nil:
		return v, err
	case tellErr != nil:
		return v, fmt.Errorf("hear from rank 0 of the island: %w", tellErr)
	case told.Err != "":
		return v, fmt.Errorf("rank 0 of the island: %s", told.Err)
	}
	return told.V, nil
}

// meet brings this island together with the others.
func (d *DiLoCo) meet(ctx context.Context) error {
	if !d.resumed {
		for _, f := range d.fragments {
			f.begin()
		}
	}
	c := d.o.Islands
	c.Settings, c.Part, c.Parts = d.settings(), 0, 1
	if d.sharded {
		c.Part, c.Parts = d.group.Rank(), d.group.Size()
	}
	var err error
	behind := false
	if d.speaks() {
		d.island, behind, err = islands.Meet(ctx, c, islands.Standing{Next: d.next, Digest: d.fragments[d.next%len(d.fragments)].digest()})
	}
	if behind, err = tell(ctx, d, behind, err); err != nil {
		return err
	}
	if d.sharded {
		birth := int64(0)
		if d.speaks() {
			birth = d.island.Birth()
		}
		if birth, err = tell(ctx, d, birth, nil); err != nil {
			return err
		}
		if !d.speaks() {
			if d.island, err = islands.Follow(c, birth); err != nil {
				return err
			}
		}
	}
	if behind {
		if err := d.catchUp(ctx); err != nil {
			return err
		}
	}
	d.met = true
	return nil
}

// catchUp takes what the others have exchanged without this island: the exchanges one by one, or
// the state of another island if they are gone.
func (d *DiLoCo) catchUp(ctx context.Context) error {
	asked := false
	for {
		f := d.fragments[d.next%len(d.fragments)]
		round, err := d.past(ctx, f)
		if err != nil {
			return err
		}
		if round != nil {
			if err := f.take(round.Payloads, d.code, d.outerStep(), false); err != nil {
				return err
			}
			d.next++
			continue
		}
		name := ""
		if d.speaks() && d.island.Begun() > d.next+1 {
			if asked {
				err = errors.New("the others have gone on too far while this island took their state: start it again")
			} else {
				name, err = d.island.Ask(ctx)
			}
		}
		if name, err = tell(ctx, d, name, err); err != nil {
			return err
		}
		if name == "" {
			break
		}
		asked = true
		if err := d.takeState(ctx, name); err != nil {
			return err
		}
	}
	for _, f := range d.fragments {
		f.reset()
	}
	d.coming, d.since = true, 0
	if d.speaks() {
		return d.island.Ready(ctx)
	}
	return nil
}

// past returns the next exchange if it is over, nil if not.
func (d *DiLoCo) past(ctx context.Context, f fragment) (round *islands.Round, err error) {
	digest := f.digest()
	if d.speaks() {
		round, err = d.island.Past(ctx, d.next, digest)
	}
	there, err := tell(ctx, d, round != nil, err)
	if err != nil || !there {
		return nil, err
	}
	if d.sharded && !d.speaks() {
		if round, err = d.island.Past(ctx, d.next, digest); err == nil && round == nil {
			err = fmt.Errorf("exchange %d is not in the store any more: start the island again", d.next)
		}
		return round, err
	}
	return d.share(ctx, round)
}

// takeState takes the outer state of another island.
func (d *DiLoCo) takeState(ctx context.Context, name string) (err error) {
	var state []byte
	after := 0
	if d.island != nil {
		state, after, err = d.island.TakeState(ctx, name)
	}
	if !d.sharded {
		if after, err = tell(ctx, d, after, err); err == nil {
			state, err = d.shareBytes(ctx, state)
		}
	}
	for _, f := range d.fragments {
		if err == nil {
			state, err = f.takeState(state)
		}
	}
	if err == nil && len(state) > 0 {
		err = fmt.Errorf("the state of another island has %d bytes too many: do all islands have the same model?", len(state))
	}
	d.next = after + 1
	return err
}

// Updated says that the optimizer has done an inner step. It posts what is due, and takes what has
// come. All ranks of the island call it after each step.
func (d *DiLoCo) Updated(ctx context.Context) error {
	if !d.met {
		return errors.New("diloco: Updated was called before Step: run the passes by DiLoCo.Step, the first of which meets the other islands")
	}
	d.since++
	d.fresh = false
	due := d.since >= d.o.Every/d.o.Fragments
	if d.coming && !due {
		// The others are in the middle of their steps: this island joins their next exchange.
		begun, err := tell(ctx, d, d.speaks() && d.island.Begun() > d.next, nil)
		if err != nil {
			return fmt.Errorf("diloco: %w", err)
		}
		due = begun
	}
	if d.under != nil && (due || d.since >= d.o.Delay) {
		// Before it is due the steps go on, for as long as a slow link or a lost island holds it up.
		over, err := true, error(nil)
		if !due {
			over, err = tell(ctx, d, len(d.under) > 0, nil)
		}
		if err == nil && over {
			err = d.take(ctx)
		}
		if err != nil {
			return fmt.Errorf("diloco: %w", err)
		}
	}
	if due {
		if err := d.send(); err != nil {
			return fmt.Errorf("diloco: %w", err)
		}
	}
	if d.under != nil && d.o.NoDelay {
		if err := d.take(ctx); err != nil {
			return fmt.Errorf("diloco: %w", err)
		}
	}
	return nil
}

// Settle waits for the exchange that is under way, and takes it. All ranks of the island call it.
func (d *DiLoCo) Settle(ctx context.Context) error {
	if d.under == nil {
		return nil
	}
	if err := d.take(ctx); err != nil {
		return fmt.Errorf("diloco: %w", err)
	}
	return nil
}

// Finish exchanges all fragments once more, so that all islands have the same parameters: those of
// the outer optimizer. A fragment that was posted after the last step is not exchanged again. Then it
// leaves the others. All ranks of the island call it after the last step.
func (d *DiLoCo) Finish(ctx context.Context) error {
	if !d.met || d.finished {
		return nil
	}
	if err := d.Settle(ctx); err != nil {
		return err
	}
	left := len(d.fragments)
	if d.fresh {
		left--
	}
	for range left {
		err := d.send()
		if err == nil {
			err = d.take(ctx)
		}
		if err != nil {
			return fmt.Errorf("diloco: the last exchanges: %w", err)
		}
	}
	for _, f := range d.fragments {
		f.reset()
	}
	d.finished = true
	var err error
	if d.speaks() {
		err = d.island.Leave(ctx)
	}
	if err == nil && d.giving != nil {
		err = <-d.giving
		d.giving = nil
	}
	if err != nil {
		return fmt.Errorf("diloco: %w", err)
	}
	return nil
}

// Close ends what is under way. The others go on without this island, at once if it has finished.
func (d *DiLoCo) Close() {
	d.end(errors.New("the DiLoCo was closed"))
	if d.under != nil {
		<-d.under
		d.under = nil
	}
	if d.giving != nil {
		<-d.giving
		d.giving = nil
	}
	if d.island != nil {
		d.island.Close()
	}
	if d.onClose != nil {
		d.onClose()
		d.onClose = nil
	}
}

// Leave tells the others to go on without this island, which is stopped. It may come back.
func (d *DiLoCo) Leave(ctx context.Context) error {
	if !d.met || d.finished || !d.speaks() {
		return nil
	}
	if err := d.island.Leave(ctx); err != nil {
		return fmt.Errorf("diloco: %w", err)
	}
	return nil
}

// send posts the outer gradient of the next fragment.
func (d *DiLoCo) send() error {
	f := d.fragments[d.next%len(d.fragments)]
	payload, err := f.encode(d.code)
	if err != nil {
		return err
	}
	d.since, d.fresh = 0, true
	d.under = make(chan exchangeEnd, 1)
	if d.island == nil { // rank 0 of the island has it too
		d.under <- exchangeEnd{}
		return nil
	}
	n, digest, under := d.next, f.digest(), d.under
	go func() {
		round, err := d.island.Exchange(d.work, n, payload, digest)
		under <- exchangeEnd{round, err}
	}()
	return nil
}

// hurry says that this rank waits for the exchange under way.
func (d *DiLoCo) hurry() {
	if d.speaks() && len(d.under) == 0 {
		d.island.Hurry()
	}
}

// take waits for the exchange under way, and does a step of the outer optimizer.
func (d *DiLoCo) take(ctx context.Context) error {
	d.hurry()
	begun := time.Now()
	var e exchangeEnd
	select {
	case e = <-d.under:
	case <-ctx.Done():
		return ctxerr.Of(ctx)
	}
	d.under = nil
	round, err := e.round, e.err
	if !d.sharded {
		if _, err = tell(ctx, d, 0, err); err == nil {
			round, err = d.share(ctx, round)
		}
	}
	d.stats.Waited += time.Since(begun)
	if err != nil {
		return err
	}
	present := round.Present
	f := d.fragments[d.next%len(d.fragments)]
	if err := f.take(round.Payloads, d.code, d.outerStep(), present); err != nil {
		return fmt.Errorf("exchange %d: %w", d.next, err)
	}
	if present {
		d.coming = false
	}
	d.next++
	d.stats.Exchanges++
	if err := d.give(round); err != nil {
		return err
	}
	if d.onRound != nil {
		x := Exchange{Number: round.Number, Members: round.Members, Missed: !present}
		if d.island != nil {
			x.Late = d.island.Late()
		}
		d.onRound(x)
	}
	return nil
}

// outerStep says how exchanges are taken.
func (d *DiLoCo) outerStep() outerStep {
	return outerStep{lr: float32(d.o.LR), momentum: float32(d.o.Momentum), mix: float32(d.o.Mix)}
}

// give gives the state of this island to another one that has asked for it, beside the next steps.
func (d *DiLoCo) give(r *islands.Round) error {
	if d.giving != nil {
		select {
		case err := <-d.giving:
			if d.giving = nil; err != nil {
				return err
			}
		default:
			return nil // the one before is still on its way: the other island asks again
		}
	}
	if r.Give == "" || d.island == nil {
		return nil
	}
	var state []byte
	for _, f := range d.fragments {
		state = f.appendState(state)
	}
	giving := make(chan error, 1)
	d.giving = giving
	go func() { giving <- d.island.GiveState(d.work, r.Give, r.Number, state) }()
	return nil
}

// share gives all ranks of the island the exchange that rank 0 has.
func (d *DiLoCo) share(ctx context.Context, r *islands.Round) (*islands.Round, error) {
	if d.group.Size() == 1 || d.sharded {
		return r, nil
	}
	type head struct {
		Number         int
		Members, Sizes []int
		Present        bool
	}
	var h head
	var all []byte
	if d.speaks() {
		h = head{Number: r.Number, Members: r.Members, Present: r.Present}
		for _, p := range r.Payloads {
			h.Sizes, all = append(h.Sizes, len(p)), append(all, p...)
		}
	}
	h, err := tell(ctx, d, h, nil)
	if err == nil {
		all, err = d.shareBytes(ctx, all)
	}
	if err != nil || d.speaks() {
		return r, err
	}
	r = &islands.Round{Number: h.Number, Members: h.Members, Present: h.Present}
	for _, n := range h.Sizes {
		r.Payloads, all = append(r.Payloads, all[:n]), all[n:]
	}
	return r, nil
}

// shareBytes gives all ranks of the island the bytes that rank 0 has.
func (d *DiLoCo) shareBytes(ctx context.Context, b []byte) ([]byte, error) {
	n, err := tell(ctx, d, len(b), nil)
	if err != nil || n == 0 || d.group.Size() == 1 {
		return b, err
	}
	t := tensor.New(tensor.CPU(), tensor.Float32, (n+3)/4)
	if d.speaks() {
		t.WithFloat32s(func(v []float32) {
			padded := append(slices.Clip(b), 0, 0, 0)
			for i := range v {
				v[i] = math.Float32frombits(binary.LittleEndian.Uint32(padded[4*i:]))
			}
		})
	}
	if err := d.group.Broadcast(ctx, t, 0); err != nil || d.speaks() {
		return b, err
	}
	return appendFloats(nil, t)[:n], nil
}
