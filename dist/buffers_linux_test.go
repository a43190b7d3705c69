// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/tensor"
)

// smallBuffers makes a network whose sockets hold as little as the system allows.
const smallBuffers = `set -e
ip link set lo up
echo 4096 4096 4096 > /proc/sys/net/ipv4/tcp_rmem
echo 4096 4096 4096 > /proc/sys/net/ipv4/tcp_wmem
exec "$@"`

// TestSmallSocketBuffers: ranks do not count on more room in their sockets than
// there is. Where each sent before it received, none would come to receive.
func TestSmallSocketBuffers(t *testing.T) {
	if !rerunInNetwork(t, smallBuffers) {
		return
	}
	for _, n := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			err := initRanks("tcp")(t.Context(), n, func(ctx context.Context, g *Group) error {
				for _, size := range []int{100, 500, 1000, 2000, 3500} {
					each := size / (n - 1) // so that all sends together have size elements
					from, to := tensor.Zeros(n*each), tensor.Zeros(n*each)
					for range 5 {
						if err := g.AllToAllSingle(ctx, to, from, nil, nil); err != nil {
							return fmt.Errorf("%d elements: %w", size, err)
						}
					}
				}
				return nil
			}, WithTimeout(10*time.Second))
			if err != nil {
				t.Error(err)
			}
		})
	}
}
