// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"errors"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/tensor"
)

// TestClosedPass: a call under a pass whose context has been closed says so, and not
// that its arguments have the wrong types; a closed agent begins no context.
func TestClosedPass(t *testing.T) {
	all, _ := agents(t, "pipe", 2)
	dc, err := NewContext(all[0])
	if err != nil {
		t.Fatal(err)
	}
	c, err := dc.Pass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dc.Close()
	_, err = failMethod.Call(c, all[0].PeerRank(1), tensor.Full(1, 2))
	if !errors.Is(err, ErrReleased) || rpc.KindOf(err) == rpc.KindTypes || strings.Contains(err.Error(), "cannot be sent") {
		t.Errorf("a call of a closed pass: %v (kind %q)", err, rpc.KindOf(err))
	}
	all[0].Close()
	if _, err := NewContext(all[0]); rpc.KindOf(err) != rpc.KindClosed {
		t.Errorf("a context of a closed agent: %v, want kind %q", err, rpc.KindClosed)
	}
}
