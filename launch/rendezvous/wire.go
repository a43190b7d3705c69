// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Limits of what is read from the store.
const (
	maxRanks = 1 << 16 // of a node
	maxText  = 4 << 10 // bytes of a name or a message
	maxState = 32 << 20
	maxCard  = 32 << 10
	// idBytes is the length of a node's ID.
	idBytes = 16
	// maxRefused is how many refusals the state remembers.
	maxRefused = 16
)

var errWire = errors.New("this is no state of a rendezvous")

func (n *Node) check() error {
	switch {
	case !isID(n.ID):
		return fmt.Errorf("%w: a node id of %d bytes", errWire, len(n.ID))
	case n.NumRanks < 1 || n.NumRanks > maxRanks:
		return fmt.Errorf("%w: a node of %d ranks", errWire, n.NumRanks)
	case n.Port < 0 || n.Port > 65535 || n.Rank < -1 || n.Rank >= MaxNodes:
		return fmt.Errorf("%w: port %d, node rank %d", errWire, n.Port, n.Rank)
	case len(n.Host) > maxText || len(n.Addr) > maxText || len(n.Role) > maxText:
		return fmt.Errorf("%w: a name of more than %d bytes", errWire, maxText)
	case strings.ContainsAny(n.Host+n.Addr+n.Role, "\x00\n\r\x1b"):
		return fmt.Errorf("%w: a name with control characters", errWire)
	case strings.ContainsAny(n.Addr, "/ "):
		return fmt.Errorf("%w: address %q", errWire, n.Addr)
	}
	return nil
}

func isID(id string) bool {
	if len(id) != idBytes {
		return false
	}
	for _, c := range []byte(id) {
		if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}

// encode writes a value for the store. No value that is written fails to encode.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func decode(b []byte, limit int, v any) error {
	if len(b) > limit {
		return fmt.Errorf("%w: %d bytes, at most %d", errWire, len(b), limit)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w (of another version of cohort?): %w", errWire, err)
	}
	if d.More() {
		return fmt.Errorf("%w: something follows it", errWire)
	}
	return nil
}

// decodeState reads a state from the store.
func decodeState(b []byte) (*State, error) {
	s := &State{}
	if err := decode(b, maxState, s); err != nil {
		return nil, err
	}
	switch {
	case s.Version == 0 || s.Round < 0 || s.Restarts < 0 || s.MaxRestarts < 0 || s.Arrived < 0:
		return nil, fmt.Errorf("%w: version %d, round %d, restarts %d of %d, arrived %d", errWire, s.Version, s.Round, s.Restarts, s.MaxRestarts, s.Arrived)
	case s.Min < 1 || s.Max < s.Min || s.Max > MaxNodes || len(s.Members) > s.Max || len(s.Waiting) > MaxNodes || len(s.Refused) > maxRefused:
		return nil, fmt.Errorf("%w: %d members and %d waiting of %d to %d", errWire, len(s.Members), len(s.Waiting), s.Min, s.Max)
	case s.Phase != Gathering && s.Phase != Running && s.Phase != Closed:
		return nil, fmt.Errorf("%w: phase %.20q", errWire, s.Phase)
	case s.Phase == Running && len(s.Members) == 0:
		return nil, fmt.Errorf("%w: it runs without nodes", errWire)
	case s.Decider != "" && !isID(s.Decider) || !isID(s.Born) || len(s.Job) > maxText || len(s.Text) > maxText:
		return nil, fmt.Errorf("%w: a name that is none", errWire)
	case s.Ending != nil && (len(s.Ending.Text) > maxText || s.Ending.Left < 0 || s.Ending.Left > len(s.Members)):
		return nil, fmt.Errorf("%w: an ending of %d bytes, after which %d of %d nodes are left", errWire, len(s.Ending.Text), s.Ending.Left, len(s.Members))
	}
	seen := make(map[string]bool, len(s.Members)+len(s.Waiting))
	for _, nodes := range [][]Node{s.Members, s.Waiting} {
		for i := range nodes {
			if err := nodes[i].check(); err != nil {
				return nil, err
			}
			if seen[nodes[i].ID] {
				return nil, fmt.Errorf("%w: node %s is there twice", errWire, nodes[i].ID)
			}
			seen[nodes[i].ID] = true
		}
	}
	return s, nil
}

// decodeCard reads a card from the store.
func decodeCard(b []byte) (*Card, error) {
	c := &Card{}
	if err := decode(b, maxCard, c); err != nil {
		return nil, err
	}
	if err := c.Node.check(); err != nil {
		return nil, err
	}
	if c.Round < 0 || len(c.Text) > maxText {
		return nil, fmt.Errorf("%w: a card of round %d with %d bytes of text", errWire, c.Round, len(c.Text))
	}
	switch c.Status {
	case Ready, Busy, Done, Failed, Leaving, Left:
		return c, nil
	}
	return nil, fmt.Errorf("%w: status %.20q", errWire, c.Status)
}

// clip shortens a message to the length that decodeState and decodeCard accept.
func clip(text string) string {
	const most = maxText - 16
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// decodeArrivals reads the list of the nodes that have arrived.
func decodeArrivals(b []byte) ([]string, error) {
	const line = idBytes + 1
	if len(b)%line != 0 || len(b) > maxState {
		return nil, fmt.Errorf("%w: a list of arrivals of %d bytes", errWire, len(b))
	}
	list := make([]string, 0, len(b)/line)
	for one := range slices.Chunk(b, line) {
		if id := string(one[:idBytes]); isID(id) && one[idBytes] == '\n' {
			list = append(list, id)
			continue
		}
		return nil, fmt.Errorf("%w: %q in the list of arrivals", errWire, one)
	}
	return list, nil
}
