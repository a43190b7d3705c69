// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/seeded"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
	"github.com/cohort-ml/cohort/tensor"
)

// python returns an interpreter that has modules.
func python(t *testing.T, modules ...string) string {
	t.Helper()
	candidates := append(strings.Split(os.Getenv("COHORT_TEST_PYTHONS"), ","), "python3", "/usr/bin/python3")
	for _, p := range candidates {
		if p != "" && exec.Command(p, "-B", "-c", "import "+strings.Join(modules, ", ")).Run() == nil {
			return p
		}
	}
	t.Skipf("no Python among %v has %v", candidates, modules)
	return ""
}

// servers makes servers that other processes reach, and returns their addresses.
func servers(t *testing.T, n int, opts ...Option) (addrs []string) {
	t.Helper()
	t.Setenv("COHORT_TOKEN", strings.Repeat("5e", 32))
	for i := range n {
		name := fmt.Sprintf("server%d", i)
		a, err := rpc.Init(context.Background(), name, rpc.WithPeers([]rpc.PeerAddr{{Name: name, Addr: "127.0.0.1:0"}}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		s, err := Serve(context.Background(), a, i, n, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		addrs = append(addrs, a.Addr())
	}
	return addrs
}

// play runs a script of the Python client, with what it is to know as JSON.
func play(t *testing.T, interpreter, script string, in any) {
	t.Helper()
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	client, err := filepath.Abs("../../clients/python")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, "-B", filepath.Join(client, "tests", script))
	cmd.Stdin = strings.NewReader(string(text))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+client)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	t.Logf("%s: %s", script, strings.TrimSpace(string(out)))
}

// TestPythonClient: the Python client computes the same routing, pulls what the Go client
// pulls in each dtype, and pushes so that the Go client sees it.
func TestPythonClient(t *testing.T) {
	interpreter := python(t, "numpy")
	r := rand.New(rand.NewPCG(seeded.Of(t), 0))
	keys := []int64{0, -1, 1 << 62}
	for range 300 {
		keys = append(keys, int64(r.Uint64()))
	}
	type routes struct {
		Servers int
		Of      []int
	}
	var routing []routes
	for _, n := range []int{1, 2, 3, 7, 64, 1024} {
		route, err := NewRouting(n)
		if err != nil {
			t.Fatal(err)
		}
		one := routes{Servers: n}
		for _, k := range keys {
			one.Of = append(one.Of, route.ServerOf(k, 0))
		}
		routing = append(routing, one)
	}
	var tables []rows.Schema
	first := map[string][][]float32{}
	for _, d := range []tensor.DType{tensor.Float32, tensor.Float16, tensor.BFloat16, tensor.Int8} {
		s := rows.Schema{Name: d.String(), Width: 5, DType: d, Init: rows.Init{Kind: rows.Uniform, Scale: 2, Seed: 4}, Optimizer: rows.Optimizer{Kind: rows.SGD, LR: 1}}
		tables = append(tables, s)
		for _, k := range keys {
			row := make([]float32, s.Width)
			s.First(row, k)
			first[s.Name] = append(first[s.Name], row)
		}
	}
	tables = append(tables, rows.Schema{Name: "dense", Width: 2, Rows: 50, Optimizer: rows.Optimizer{Kind: rows.SGD, LR: 1}})
	for _, n := range []int{1, 3} {
		addrs := servers(t, n, WithTables(tables...), WithWorkers(1, Synchronous()))
		play(t, interpreter, "play_ps.py", map[string]any{"addresses": addrs, "keys": keys, "routing": routing, "first": first})
		a, err := rpc.Init(t.Context(), "reader")
		if err != nil {
			t.Fatal(err)
		}
		c, err := Dial(t.Context(), a, At(addrs...))
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Pull(t.Context(), Request{Table: "dense", Keys: []int64{0, 7, 49}})
		if err != nil {
			t.Fatal(err)
		}
		// The script has pushed 1 to key 7 twice in a push, and 0.5 to 49 in the next.
		if text := fmt.Sprint(got[0].Float32s()); text != "[0 0 -2 -2 -0.5 -0.5]" {
			t.Errorf("%d servers: the rows are %s", n, text)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestPythonBatched: two workers in Python get the rows of their batch, also of a step without
// gradients, and rows that they have asked for ahead.
func TestPythonBatched(t *testing.T) {
	interpreter := python(t, "numpy")
	for n, wire := range map[int]string{1: "float32", 3: "bfloat16"} {
		addrs := servers(t, n, WithWorkers(2, Asynchronous().Batched(2, true)))
		play(t, interpreter, "play_ps_batched.py", map[string]any{"addresses": addrs, "wire": wire})
	}
}

// TestPyTorchTrains: a PyTorch DLRM whose tables lie on servers has the losses of the same
// DLRM with torch.nn.EmbeddingBag.
func TestPyTorchTrains(t *testing.T) {
	interpreter := python(t, "numpy", "torch")
	play(t, interpreter, "play_ps_torch.py", map[string]any{"addresses": servers(t, 2), "again": servers(t, 2)})
}
