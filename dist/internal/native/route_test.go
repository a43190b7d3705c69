// SPDX-License-Identifier: Apache-2.0

package native

import (
	"testing"

	"github.com/cohort-ml/cohort/internal/transport"
)

// TestRoutes: what goes between nodes is encrypted as the policy says, what
// stays within one only on demand.
func TestRoutes(t *testing.T) {
	const near, far = 1, 2
	for _, c := range []struct {
		opts MeshOptions
		// of a near rank, of a far one: control and data
		near, farControl, farData route
	}{
		{MeshOptions{}, overUnix, overTLS, overTCP},
		{MeshOptions{Local: LocalTCP}, overTCP, overTLS, overTCP},
		{MeshOptions{TLS: transport.EncryptAll}, overUnix, overTLS, overTLS},
		{MeshOptions{TLS: transport.EncryptAll, Local: LocalTCP}, overTCP, overTLS, overTLS},
		{MeshOptions{TLS: transport.EncryptAll, Local: LocalTCP, LocalTLS: true}, overTLS, overTLS, overTLS},
		{MeshOptions{TLS: transport.EncryptNone, Local: LocalUnix}, overUnix, overTCP, overTCP},
	} {
		c.opts.Node = []int{0, 0, 1}
		m := &Mesh{opts: c.opts}
		for _, why := range []purpose{forControl, forCollectives, forMessages} {
			want := c.farData
			if why == forControl {
				want = c.farControl
			}
			if got := m.route(far, why); got != want {
				t.Errorf("%+v: purpose %d to another node takes route %d, want %d", c.opts, why, got, want)
			}
			if got := m.route(near, why); got != c.near {
				t.Errorf("%+v: purpose %d within the node takes route %d, want %d", c.opts, why, got, c.near)
			}
		}
	}
}
