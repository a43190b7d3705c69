// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"

	"github.com/cohort-ml/cohort/internal/lobby"
)

// nobodyKnown is the number of a user who has no number on this host, such as one in a container.
const nobodyKnown = 65534

// admitUser turns away connections of another user of this host: all members of a job are processes of one
// user.
func admitUser(from lobby.Source) error {
	if user, ok := from.Unix(); ok && user != 0 && user != nobodyKnown && user != os.Geteuid() {
		return errOtherUser
	}
	return nil
}

// tlsHead is how much of a TLS record says how long it is.
const tlsHead = 5

// greeted judges the first bytes of a connection: whether they prove the token, or how many are needed to
// tell (see [lobby.Config]). It keeps nothing of them, and the handshake checks them again.
func (t Token) greeted(said []byte) (need int, why error) {
	if len(said) == 0 {
		return helloSize, nil
	}
	switch b := said[0]; {
	case b == magic[0]:
		return t.greetedPlain(said)
	case b == tlsFirst:
		return t.greetedTLS(said)
	case b >= ' ' && b <= '~':
		return 0, errText
	}
	for _, g := range pyTorchGreetings {
		switch {
		case strings.HasPrefix(string(said), g):
			return 0, errPyTorch
		case strings.HasPrefix(g, string(said)):
			return len(g), nil
		}
	}
	return 0, errGarbage
}

func (t Token) greetedPlain(said []byte) (need int, why error) {
	n := min(len(said), len(magic))
	switch {
	case string(said[:n]) != magic[:n]:
		return 0, errGarbage
	case len(said) > n && said[n] != version:
		return 0, errVersion
	case len(said) < helloSize:
		return helloSize, nil
	}
	hello, err := t.provenHello(said, nil)
	switch {
	case err != nil:
		return 0, err
	case t.said.has(hello.nonces[:nonceSize]):
		return 0, errRepeated
	}
	return 0, nil
}

func (t Token) greetedTLS(said []byte) (need int, why error) {
	if len(said) < tlsHead {
		return helloSize, nil // no member's is shorter
	}
	need = tlsHead + int(binary.BigEndian.Uint16(said[tlsHead-2:]))
	switch {
	case need > helloBuffer:
		return 0, errGarbage
	case len(said) < need:
		return need, nil
	}
	at := bytes.Index(said, []byte(tlsGreeting))
	if at < 0 {
		return 0, errGarbage
	}
	nonce, ok := greets(t, string(said[at:min(len(said), at+greetingSize)]))
	switch {
	case !ok:
		return 0, errNoProof
	case t.said.has(nonce):
		return 0, errRepeated
	}
	return 0, nil
}
