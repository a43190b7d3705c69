// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/rpc/internal/agenttest"
)

// alone makes an agent without a job, which is closed at the end of the test.
func alone(t *testing.T, name string, opts ...Option) *Agent {
	t.Helper()
	a, err := Init(t.Context(), name, append([]Option{WithToken(agenttest.Token)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// answerer is a method that says which process answers.
var answerer = NewMethod[struct{}, string]("test.answerer")

func serveAnswerer(name string) Service {
	return Serve(answerer, func(context.Context, struct{}) (string, error) { return name, nil })
}

func TestVisit(t *testing.T) {
	ways := map[string]string{"": "shm", agenttest.Pipe: agenttest.Pipe, "shm": "unix", "unix": "unix", "tcp": "tcp", "tls": "tls"}
	for kind, how := range ways {
		t.Run(kind, func(t *testing.T) {
			at := WithListen("127.0.0.1:0")
			var net Option = WithOptions()
			switch kind {
			case agenttest.Pipe:
				at, net = WithOptions(), WithNetwork(NewNetwork())
			default:
				t.Setenv("COHORT_TRANSPORT", kind)
				t.Setenv("COHORT_ENCRYPT", "")
			}
			if kind == "shm" || kind == "unix" { // without TCP there is an address of a unix socket
				at = option(func(o *options) error { o.listen = "unix:"; return nil })
			}
			server := alone(t, "server", at, net, serveAnswerer("first"))
			visitor := alone(t, "visitor", net)
			p, err := visitor.Visit(t.Context(), server.VisitAddr())
			if err != nil {
				t.Fatal(err)
			}
			if got, err := answerer.Call(t.Context(), p, struct{}{}); err != nil || got != "first" {
				t.Fatalf("a call answers %q, %v", got, err)
			}
			if p.Transport() != how {
				t.Errorf("the visit goes over %q, want %q", p.Transport(), how)
			}
			if kind != "" && kind != "tcp" && kind != agenttest.Pipe {
				return
			}
			// A process that takes the place at the address is visited in its turn.
			addr := server.VisitAddr()
			if err := server.Close(); err != nil {
				t.Fatal(err)
			}
			if kind != agenttest.Pipe {
				at = WithListen(addr)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if _, err := answerer.Call(ctx, p, struct{}{}); err == nil {
				t.Error("an agent that has been closed answers")
			}
			alone(t, "server", at, net, serveAnswerer("second"))
			agenttest.Eventually(t, "the second process answers", func() bool {
				got, err := answerer.Call(t.Context(), p, struct{}{})
				return err == nil && got == "second"
			})
			if p.Transport() != how {
				t.Errorf("the second visit goes over %q, want %q", p.Transport(), how)
			}
		})
	}
}

// A member of a job visits an agent of no job.
func TestVisitFromJob(t *testing.T) {
	a := agents(t, "tcp", 2, serveBasics())
	server := alone(t, "server", WithListen("127.0.0.1:0"), serveAnswerer("server"))
	for _, from := range a {
		p, err := from.Visit(t.Context(), server.VisitAddr())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := answerer.Call(t.Context(), p, struct{}{}); err != nil || got != "server" {
			t.Errorf("%v: a call answers %q, %v", from, got, err)
		}
	}
}

func TestVisitOfNobody(t *testing.T) {
	t.Setenv("COHORT_TRANSPORT", "")
	visitor := alone(t, "visitor", WithNetwork(NewNetwork()))
	if _, err := visitor.Visit(t.Context(), "127.0.0.1:1"); err == nil {
		t.Error("an agent on pipes visits an address of TCP")
	}
	p, err := visitor.Visit(t.Context(), "pipe:nobody")
	if err != nil {
		t.Fatal(err)
	}
	_, err = answerer.Call(t.Context(), p, struct{}{})
	if KindOf(err) != KindUnreachable {
		t.Errorf("a call of nobody: %v", err)
	}
	visitor.Close()
	if _, err := visitor.Visit(t.Context(), "pipe:nobody"); !errors.Is(err, &Error{Kind: KindClosed}) {
		t.Errorf("a visit by a closed agent: %v", fmt.Sprint(err))
	}
}
