// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
)

// An address is published as the 128 bytes of a sockaddr_storage and a number of
// 64 bits by which a connection says whose it is, noSequence where it does not.
const (
	sockaddrBytes = 128
	addressBytes  = sockaddrBytes + 8
	noSequence    = -1

	familyIPv4 = 2
	familyIPv6 = 10

	// maxHostname bounds the name of a host in what a peer publishes.
	maxHostname = 4 << 10
	// maxSize is the most ranks that a group may have.
	maxSize = 1 << 20
)

// address is where a rank listens.
type address struct {
	addr netip.AddrPort
	seq  int64
}

// append adds the published form.
func (a address) append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, addressBytes)...)
	to := b[at:]
	binary.BigEndian.PutUint16(to[2:], a.addr.Port())
	if ip := a.addr.Addr().Unmap(); ip.Is4() {
		binary.LittleEndian.PutUint16(to, familyIPv4)
		four := ip.As4()
		copy(to[4:], four[:])
	} else {
		binary.LittleEndian.PutUint16(to, familyIPv6)
		sixteen := ip.As16()
		copy(to[8:], sixteen[:])
		binary.LittleEndian.PutUint32(to[24:], zoneNumber(ip.Zone()))
	}
	binary.LittleEndian.PutUint64(to[sockaddrBytes:], uint64(a.seq))
	return b
}

// parseAddress reads a published address. What a sockaddr does not use of its 128
// bytes is whatever was there.
func parseAddress(b []byte) (address, error) {
	if len(b) < addressBytes {
		return address{}, fmt.Errorf("an address of %d bytes, want %d", len(b), addressBytes)
	}
	port := binary.BigEndian.Uint16(b[2:])
	var ip netip.Addr
	switch family := binary.LittleEndian.Uint16(b); family {
	case familyIPv4:
		ip = netip.AddrFrom4([4]byte(b[4:]))
	case familyIPv6:
		ip = netip.AddrFrom16([16]byte(b[8:]))
		if zone := binary.LittleEndian.Uint32(b[24:]); zone != 0 {
			ip = ip.WithZone(zoneName(zone))
		}
	default:
		return address{}, fmt.Errorf("an address of family %d, want %d (IPv4) or %d (IPv6)", family, familyIPv4, familyIPv6)
	}
	if port == 0 || ip.IsUnspecified() {
		return address{}, fmt.Errorf("the address %v, at which nobody can be reached", netip.AddrPortFrom(ip, port))
	}
	return address{netip.AddrPortFrom(ip, port), int64(binary.LittleEndian.Uint64(b[sockaddrBytes:]))}, nil
}

// dials reports whether the rank at a connects to the one at peer, rather than
// the other way: whose address is the greater one. Addresses are compared byte
// by byte, then the ports as a little-endian machine reads them, with their bytes
// swapped, then the sequence numbers.
func (a address) dials(peer address) (bool, error) {
	mine, its := a.addr.Addr().Unmap(), peer.addr.Addr().Unmap()
	if mine.Is4() != its.Is4() {
		return false, fmt.Errorf("it listens at %v, this rank at %v: all ranks need addresses of one family, which GLOO_SOCKET_IFNAME chooses by an interface", peer.addr, a.addr)
	}
	order := bytes.Compare(mine.AsSlice(), its.AsSlice())
	if order == 0 {
		order = int(swapped(a.addr.Port())) - int(swapped(peer.addr.Port()))
	}
	if order == 0 {
		switch {
		case a.seq > peer.seq:
			order = 1
		case a.seq < peer.seq:
			order = -1
		}
	}
	if order == 0 {
		return false, fmt.Errorf("it listens at %v with number %d, as this rank does", peer.addr, peer.seq)
	}
	return order > 0, nil
}

func swapped(port uint16) uint16 { return port<<8 | port>>8 }

// rankInfo is what a rank publishes of itself in a [PerDevice] meeting: its host,
// an address, and for every rank the number that one's connection presents. The
// list is empty where ranks connect when they first need to; they then present
// their ranks.
type rankInfo struct {
	host string
	addr address
	ids  []int64
}

func (r *rankInfo) encode() []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(r.host)))
	b = append(b, r.host...)
	b = binary.LittleEndian.AppendUint64(b, addressBytes)
	b = r.addr.append(b)
	for _, id := range r.ids {
		b = binary.LittleEndian.AppendUint64(b, uint64(id))
	}
	return b
}

// anySize is for what a rank has published that believes in a group of another size.
const anySize = -1

// parseRankInfo reads what a rank of a group of size has published.
func parseRankInfo(b []byte, size int) (rankInfo, error) {
	field := func(what string, most uint64) ([]byte, error) {
		if len(b) < 8 {
			return nil, fmt.Errorf("it ends before the length of its %s", what)
		}
		n := binary.LittleEndian.Uint64(b)
		b = b[8:]
		if n > most || n > uint64(len(b)) {
			return nil, fmt.Errorf("a %s of %d bytes, %d are left", what, n, len(b))
		}
		v := b[:n]
		b = b[n:]
		return v, nil
	}
	whole := len(b)
	host, err := field("host name", maxHostname)
	if err != nil {
		return rankInfo{}, fmt.Errorf("rank info of %d bytes: %w", whole, err)
	}
	where, err := field("address", math.MaxInt64)
	if err != nil {
		return rankInfo{}, fmt.Errorf("rank info of %d bytes: %w", whole, err)
	}
	if len(where) != addressBytes {
		return rankInfo{}, fmt.Errorf("rank info of %d bytes: an address of %d bytes, want %d", whole, len(where), addressBytes)
	}
	r := rankInfo{host: string(host)}
	if r.addr, err = parseAddress(where); err != nil {
		return rankInfo{}, fmt.Errorf("rank info of %d bytes: %w", whole, err)
	}
	switch {
	case len(b) == 0:
	case len(b)%8 != 0:
		return rankInfo{}, fmt.Errorf("rank info of %d bytes: %d bytes of pair numbers, want a multiple of 8", whole, len(b))
	case size != anySize && len(b) != 8*size:
		return rankInfo{}, &sizeError{len(b) / 8, size}
	default:
		for ; len(b) > 0; b = b[8:] {
			r.ids = append(r.ids, int64(binary.LittleEndian.Uint64(b)))
		}
	}
	return r, nil
}

// appendPairAddresses is what a rank publishes in a [PerPair] meeting: the addresses
// at which it listens for each of the others, in their order.
func appendPairAddresses(b []byte, addrs []netip.AddrPort, self int) []byte {
	for peer, a := range addrs {
		if peer != self {
			b = address{a, noSequence}.append(b)
		}
	}
	return b
}

// parsePairAddress reads where a peer, of a group of size, listens for this rank.
func parsePairAddress(b []byte, size, peer, self int) (address, error) {
	if len(b)%addressBytes != 0 {
		return address{}, fmt.Errorf("addresses of %d bytes, want a multiple of %d", len(b), addressBytes)
	}
	n := len(b) / addressBytes
	if size != anySize && n != size-1 {
		return address{}, &sizeError{n + 1, size}
	}
	at := self
	if self > peer {
		at--
	}
	if at >= n {
		return address{}, fmt.Errorf("it has addresses for %d ranks, and none for rank %d", n, self)
	}
	return parseAddress(b[at*addressBytes:])
}
