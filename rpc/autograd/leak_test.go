// SPDX-License-Identifier: Apache-2.0

package autograd

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/optim"
)

// TestAnOptimizerThatIsNotClosed stands in Shutdown's list with the line that made it,
// and not with a line of this package.
func TestAnOptimizerThatIsNotClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stderr")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all, _ := stagesOf(t, 2)
	refs, err := refsMethod.Call(t.Context(), all[0].PeerRank(1), struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	opt, err := NewOptimizer(t.Context(), all[0], SGD(optim.SGDOptions{LR: 0.1}), refs)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range refs {
		r.Release()
	}
	stderr := os.Stderr
	os.Stderr = file
	var both sync.WaitGroup
	for _, a := range all {
		both.Go(func() {
			if err := a.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	os.Stderr = stderr
	runtime.KeepAlive(opt)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(text); !strings.Contains(got, "made at leak_test.go:") || strings.Contains(got, "optimizer.go:") {
		t.Errorf("Shutdown says %q; want the line of NewOptimizer's call", got)
	}
}
