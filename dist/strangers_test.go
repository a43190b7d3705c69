// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// TestTwoJobsOfOneName: a job that is started with the address, node id and run
// id of one that is running ends with one message for each rank that says why,
// whether it has the other's token or one of its own, and the job that was there
// does not notice.
func TestTwoJobsOfOneName(t *testing.T) {
	t.Parallel()
	_, port, err := net.SplitHostPort(freeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	token := transport.NewToken().Text()
	same := []string{envvar.MasterPort.Assign(port), envvar.NodeID.Assign("node"), envvar.RunID.Assign("job"), envvar.Transport.Assign("tcp")}
	first := startRanks(t, 2, "wait", append(same, envvar.Token.Assign(token))...)
	for _, p := range first {
		select {
		case <-p.line:
		case <-time.After(20 * time.Second):
			t.Fatalf("the first job does not begin:\n%s", p.stacks())
		}
	}
	for _, tt := range []struct{ name, token, want string }{
		{"a token of its own", transport.NewToken().Text(), "its job token differs from this process's"},
		{"the same token", token, "a process has joined as rank 1 before"},
	} {
		second := startRanks(t, 2, "barrier", append(same, envvar.Token.Assign(tt.token))...)
		for r, want := range []string{"another process listens there; end it or choose another port", tt.want} {
			p := second[r]
			if err := p.await(t, 20*time.Second); err == nil {
				t.Errorf("%s: rank %d ended well", tt.name, r)
			}
			out := strings.TrimSpace(p.output())
			if !strings.Contains(out, want) || strings.Count(out, "\n") > 0 || strings.Contains(out, token) || strings.Contains(out, tt.token) {
				t.Errorf("%s: rank %d says\n%s\nwant one line with %q", tt.name, r, out, want)
			}
		}
	}
	for r, p := range first {
		select {
		case <-p.waited:
			t.Errorf("rank %d of the first job has ended: %s", r, p.output())
		default:
		}
	}
	// The one with another token was turned away, and rank 0 says so.
	first[0].saidLine(t, "cohort: rank 0 turned away", 20*time.Second)
	if out := first[0].output(); strings.Count(out, "turned away") != 1 || !strings.Contains(out, "the job's token was not proven") {
		t.Errorf("rank 0 of the first job says\n%s", out)
	}
}
