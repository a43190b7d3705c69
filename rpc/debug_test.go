// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/tensor"
)

func TestDebug(t *testing.T) {
	a := agents(t, "pipe", 2, serveBasics())
	p := a[0].Peer("w1")
	x := tensor.Zeros(1000)
	for range 5 {
		if _, err := echo.Call(t.Context(), p, x); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := fail.Call(t.Context(), p, "<b>"); err == nil {
		t.Fatal("no error")
	}
	wait.Async(t.Context(), p, struct{}{})
	if _, err := noop.Call(t.Context(), p, struct{}{}); err != nil { // behind it
		t.Fatal(err)
	}
	for i, want := range [][]string{
		{"agent w0 (rank 0 of 2)", "is awaited", "test.wait", "test.echo", "w1", "pipe"},
		{"agent w1 (rank 1 of 2)", "is answered", "test.wait", "tensor -&gt; tensor"},
	} {
		w := httptest.NewRecorder()
		a[i].DebugHandler().ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		for _, s := range want {
			if !strings.Contains(w.Body.String(), s) {
				t.Errorf("the page of w%d does not have %q:\n%s", i, s, w.Body)
			}
		}
	}
	w := httptest.NewRecorder()
	a[0].DebugHandler().ServeHTTP(w, httptest.NewRequest("GET", "/?format=json", nil))
	var page DebugInfo
	if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
		t.Fatal(err)
	}
	counts := map[string]MethodStats{}
	for _, m := range page.Called {
		counts[m.Method] = m
	}
	if e := counts["test.echo"]; e.Calls != 5 || e.Failures != 0 || e.InFlight != 0 || e.Sent < 20000 || e.Received < 20000 || e.P50 == 0 || e.P99 < e.P50 {
		t.Errorf("echo: %+v", e)
	}
	if f := counts["test.fail"]; f.Calls != 1 || f.Failures != 1 {
		t.Errorf("fail: %+v", f)
	}
	if f := counts["test.wait"]; f.Calls != 0 || f.InFlight != 1 {
		t.Errorf("wait: %+v", f)
	}
	if len(page.InFlight) != 1 || page.InFlight[0].Served || page.InFlight[0].Left == 0 {
		t.Errorf("in flight: %+v", page.InFlight)
	}
}
