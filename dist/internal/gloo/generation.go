// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
)

// Generation is how the members of a group meet, by the version of PyTorch.
type Generation uint8

const (
	// PerPair is Gloo's way until the middle of 2023, up to PyTorch 2.0: a rank
	// listens at one address for each of the others.
	PerPair Generation = iota + 1
	// PerDevice is its way since, from PyTorch 2.1 on: a rank listens at one address,
	// and who connects says for which pair of ranks.
	PerDevice
)

func (g Generation) String() string {
	switch g {
	case PerPair:
		return "an address for each pair (PyTorch up to 2.0)"
	case PerDevice:
		return "an address for each rank (PyTorch from 2.1 on)"
	}
	return fmt.Sprintf("generation %d", uint8(g))
}

// meetPerDevice: every rank listens at one address.
func (m *rendezvous) meetPerDevice(ctx context.Context) error {
	b := m.b
	l, here, err := m.listen(ctx)
	if err != nil {
		return err
	}
	me := rankInfo{host: b.cfg.Hostname, addr: address{here, noSequence}}
	if !b.cfg.Lazy {
		// The number of a connection is the rank that makes it: so do ranks that
		// connect when they need to.
		for r := range b.cfg.Members {
			me.ids = append(me.ids, int64(r))
		}
	}
	b.running.Add(1)
	l = m.speaking(l)
	go m.acceptAll(l, m.callerByNumber)
	if err := b.cfg.Store.Set(ctx, m.key("", b.cfg.Rank), me.encode()); err != nil {
		return fmt.Errorf("dist: group %q over gloo: %w", b.cfg.Group, err)
	}
	m.plan = func(r int, v []byte) (there netip.AddrPort, hello []byte, first bool, err error) {
		info, err := parseRankInfo(v, anySize)
		if err != nil || b.cfg.Rank >= len(info.ids) { // who does not wait for this rank
			return there, nil, false, err
		}
		return me.dials(b.cfg.Rank, r, info)
	}
	dials := m.dialing(ctx)
	defer dials.end()
	lazy := false
	var awaited []int
	err = m.get(ctx, "", m.others(), func(r int, v []byte) error {
		info, err := parseRankInfo(v, len(b.cfg.Members))
		if err != nil {
			return otherGeneration(PerPair, len(v) > 0 && len(v)%addressBytes == 0, err)
		}
		m.named(r, info.host)
		there, hello, first, err := me.dials(b.cfg.Rank, r, info)
		switch {
		case err != nil:
			return err
		case first:
			awaited = append(awaited, r)
			dials.start(r, there, hello)
		case info.ids == nil:
			lazy = true
		default:
			awaited = append(awaited, r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := m.await(ctx, awaited, dials); err != nil {
		return err
	}
	if !lazy {
		m.close(l)
	}
	return nil
}

// dials says whether rank self, which has published me, is the one to connect to rank r, which
// has published info; where to, and what to say then.
func (me *rankInfo) dials(self, r int, info rankInfo) (there netip.AddrPort, hello []byte, first bool, err error) {
	number, own := int64(self), int64(r)
	if info.ids != nil {
		number = info.ids[self]
	}
	if me.ids != nil {
		own = me.ids[r]
	}
	first, err = (address{me.addr.addr, own}).dials(address{info.addr.addr, number})
	return info.addr.addr, binary.LittleEndian.AppendUint64(nil, uint64(number)), first, err
}

// otherGeneration returns an error about what a rank has published, which may be that
// it meets in the other way.
func otherGeneration(g Generation, meets bool, err error) error {
	if meets {
		return fmt.Errorf("it meets by %v: this rank cannot be in one group with it (%w)", g, err)
	}
	return err
}

// meetPerPair: every rank listens at an address for each other.
func (m *rendezvous) meetPerPair(ctx context.Context) error {
	b := m.b
	n, self := len(b.cfg.Members), b.cfg.Rank
	listeners := make([]net.Listener, n)
	addrs := make([]netip.AddrPort, n)
	for _, r := range m.others() {
		var err error
		if listeners[r], addrs[r], err = m.listen(ctx); err != nil {
			return err
		}
		b.running.Add(1)
		go m.acceptAll(listeners[r], func(net.Conn) (int, error) { return r, nil })
	}
	if err := m.publishPerPair(ctx, addrs); err != nil {
		return err
	}
	plan := func(r int, v []byte, size int) (at netip.AddrPort, first bool, err error) {
		there, err := parsePairAddress(v, size, r, self)
		if err == nil {
			first, err = (address{addrs[r], noSequence}).dials(there)
		}
		return there.addr, first, err
	}
	m.plan = func(r int, v []byte) (at netip.AddrPort, hello []byte, first bool, err error) {
		at, first, err = plan(r, v, anySize)
		return at, nil, first, err
	}
	dials := m.dialing(ctx)
	defer dials.end()
	err := m.get(ctx, "", m.others(), func(r int, v []byte) error {
		there, first, err := plan(r, v, n)
		if err != nil {
			_, other := parseRankInfo(v, n)
			return otherGeneration(PerDevice, other == nil, err)
		}
		if first {
			m.close(listeners[r])
			dials.start(r, there, nil)
		}
		return nil
	})
	if err == nil {
		err = m.takeHosts(ctx)
	}
	if err != nil {
		return err
	}
	if err := m.await(ctx, m.others(), dials); err != nil {
		return err
	}
	m.close(listeners...)
	return nil
}

// publishPerPair tells the others this rank's host and where it listens for each of them.
func (m *rendezvous) publishPerPair(ctx context.Context, addrs []netip.AddrPort) error {
	cfg := &m.b.cfg
	if err := cfg.Store.Set(ctx, m.key("rank_", cfg.Rank), []byte(cfg.Hostname)); err != nil {
		return fmt.Errorf("dist: group %q over gloo: %w", cfg.Group, err)
	}
	if err := cfg.Store.Set(ctx, m.key("", cfg.Rank), appendPairAddresses(nil, addrs, cfg.Rank)); err != nil {
		return fmt.Errorf("dist: group %q over gloo: %w", cfg.Group, err)
	}
	return nil
}

// takeHosts takes note of the hosts that the others have published.
func (m *rendezvous) takeHosts(ctx context.Context) error {
	return m.get(ctx, "rank_", m.others(), func(r int, v []byte) error {
		if len(v) > maxHostname {
			return fmt.Errorf("a host name of %d bytes, at most %d", len(v), maxHostname)
		}
		m.named(r, string(v))
		return nil
	})
}
