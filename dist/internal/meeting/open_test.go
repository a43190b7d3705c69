// SPDX-License-Identifier: Apache-2.0

package meeting

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cohort-ml/cohort/dist/internal/backend"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// A job says that its data goes between hosts in the clear where it does, unless somebody
// has chosen so.
func TestDataIsOpen(t *testing.T) {
	here, there := introduction{Node: "1", Host: "a"}, introduction{Node: "2", Host: "b"}
	sameHost := introduction{Node: "2", Host: "a"}
	for _, c := range []struct {
		all       []introduction
		encrypt   transport.Encrypt
		said      string
		transport string
		want      bool
	}{
		{[]introduction{here, there}, transport.EncryptControl, "", "auto", true},
		{[]introduction{here, here, there}, transport.EncryptControl, "", "tcp", true},
		{[]introduction{here, there}, transport.EncryptControl, "control", "auto", false},
		{[]introduction{here, there}, transport.EncryptControl, "", "tls", false},
		{[]introduction{here, there}, transport.EncryptAll, "all", "auto", false},
		{[]introduction{here, there}, transport.EncryptNone, "none", "auto", false},
		{[]introduction{here, here}, transport.EncryptControl, "", "auto", false},
		{[]introduction{here, sameHost}, transport.EncryptControl, "", "auto", false},
	} {
		t.Setenv(string(envvar.Encrypt), c.said)
		m := &meeting{settings: new(backend.Settings), all: c.all, me: here, encrypt: c.encrypt}
		m.me.Transport = c.transport
		if got := m.dataIsOpen(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// A rank that waits for rank 0 says what it meets at its port, if somebody is there.
func TestHindrance(t *testing.T) {
	m := meeting{settings: new(backend.Settings)}
	if text := m.hindrance(); text != "" {
		t.Error(text)
	}
	for _, c := range []struct {
		err  error
		says bool
	}{{fmt.Errorf("dial: %w", syscall.ECONNREFUSED), false}, {errors.New("no answer came"), true}, {transport.ErrNoRoom, true}} {
		m.failed.Store(&c.err)
		if text := m.hindrance(); strings.Contains(text, c.err.Error()) != c.says || strings.Contains(text, `dist.WithBackend("gloo")`) != c.says {
			t.Errorf("%v: %q", c.err, text)
		}
	}
}
