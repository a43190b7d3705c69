// SPDX-License-Identifier: Apache-2.0

package train

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/config"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps"
)

// inProcess starts servers in this process, for tests.
func inProcess(ctx context.Context, o ServersOptions) (addrs []string, stop func() error, err error) {
	var ends []func() error
	stop = func() error {
		var errs []error
		for _, end := range slices.Backward(ends) {
			errs = append(errs, end())
		}
		return errors.Join(errs...)
	}
	for i := range o.Count {
		a, err := rpc.Init(ctx, fmt.Sprintf("ps%d", i), rpc.WithListen(o.Host+":0"), rpc.WithToken(o.Token))
		if err != nil {
			return nil, nil, errors.Join(err, stop())
		}
		ends = append(ends, a.Close)
		s, err := ps.Serve(ctx, a, i, o.Count)
		if err != nil {
			return nil, nil, errors.Join(err, stop())
		}
		ends = append(ends, s.Close)
		addrs = append(addrs, s.Addr())
	}
	return addrs, stop, nil
}

// servedRec is a run of a recommender with servers.
func servedRec(cfg RecConfig, servers, staleness int) RecConfig {
	cfg.PS, cfg.Staleness, cfg.StartServers = servers, staleness, inProcess
	return cfg
}

// trainSummed is trainRec on ranks that add up gradients in the order of the ranks.
func trainSummed(ctx context.Context, cfg RecConfig, ranks int, report Reporter) error {
	cfg.Ranks = ranks
	given := map[string]string{"epochs": config.Flag} // also if the run goes on
	return dist.Spawn(ctx, ranks, func(ctx context.Context, group *dist.Group) error {
		return Rec(ctx, group, cfg, given, report)
	}, dist.WithDeterministic())
}

// savedTensors returns the bytes of all tensors of the newest checkpoint of a run.
func savedTensors(t *testing.T, cfg RecConfig) map[string][]byte {
	t.Helper()
	steps, err := checkpoint.Steps(t.Context(), storage.Dir(cfg.Out))
	if err != nil || len(steps) == 0 {
		t.Fatalf("%s has the checkpoints %v: %v", cfg.Out, steps, err)
	}
	ck, err := checkpoint.Open(t.Context(), storage.Dir(cfg.Out), checkpoint.StepName(steps[0]))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, section := range []string{checkpoint.Model, checkpoint.Optimizer} {
		src, err := ck.Source(section)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range src.Infos() {
			b := make([]byte, info.NumBytes())
			if err := src.ReadTensor(info.Name, b); err != nil {
				t.Fatal(err)
			}
			all[section+"/"+info.Name] = b
		}
		src.Close()
	}
	return all
}

func wantSameTensors(t *testing.T, got, want map[string][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("the checkpoint has %d tensors, want %d", len(got), len(want))
	}
	for name, w := range want {
		if !bytes.Equal(got[name], w) {
			t.Fatalf("the checkpoint has another %s (%d bytes) than the run without servers (%d bytes)", name, len(got[name]), len(w))
		}
	}
}

// TestServedEqualsLocal: a run whose tables lie on servers has the losses, metrics and
// checkpoints of a run without, bit for bit: for both models, with decay of the learning rate,
// and with several passes in a step.
func TestServedEqualsLocal(t *testing.T) {
	for _, c := range []struct {
		model                  string
		ranks, servers, passes int
	}{{recDLRM, 1, 1, 1}, {recDLRM, 2, 3, 1}, {recMF, 2, 2, 2}} {
		t.Run(fmt.Sprintf("%s of %d ranks on %d servers", c.model, c.ranks, c.servers), func(t *testing.T) {
			cfg := smallRec(t)
			cfg.Model, cfg.Epochs, cfg.Decay, cfg.Accumulate = c.model, 0.5, 0.01, c.passes
			want, got := newLog(), newLog()
			if err := trainSummed(t.Context(), cfg, c.ranks, want); err != nil {
				t.Fatal(err)
			}
			served := servedRec(cfg, c.servers, 0)
			served.Out = t.TempDir()
			if err := trainSummed(t.Context(), served, c.ranks, got); err != nil {
				t.Fatal(err)
			}
			if !maps.Equal(got.losses, want.losses) {
				t.Errorf("the losses are %v, want %v", got.losses, want.losses)
			}
			if g, w := fmt.Sprint(got.finish.Metrics), fmt.Sprint(want.finish.Metrics); g != w {
				t.Errorf("the metrics are %s, want %s", g, w)
			}
			wantSameTensors(t, savedTensors(t, served), savedTensors(t, cfg))
		})
	}
}

// TestServedResumes: a run goes on from its checkpoint with servers, with others, or without,
// as a run that never stopped.
func TestServedResumes(t *testing.T) {
	cfg := smallRec(t)
	cfg.Epochs, cfg.Decay = 0.5, 0.01
	want := newLog()
	if err := trainSummed(t.Context(), cfg, 2, want); err != nil {
		t.Fatal(err)
	}
	whole := savedTensors(t, cfg)
	for name, servers := range map[string][2]int{"other servers": {2, 3}, "from servers to none": {1, 0}, "from none to servers": {0, 2}} {
		t.Run(name, func(t *testing.T) {
			c := cfg
			c.Out = t.TempDir()
			ctx, stop := context.WithCancel(t.Context())
			first := newLog()
			first.onStep = func(step int) {
				if step == 25 {
					stop()
				}
			}
			if err := trainSummed(ctx, servedRec(c, servers[0], 0), 2, first); !errors.Is(err, ErrStopped) {
				t.Fatalf("the first part ended with %v", err)
			}
			second := newLog()
			if err := trainSummed(t.Context(), servedRec(c, servers[1], 0), 2, second); err != nil {
				t.Fatal(err)
			}
			for step, loss := range want.losses {
				if _, ok := second.losses[step]; step > len(first.losses) && (!ok || second.losses[step] != loss) {
					t.Fatalf("step %d has the loss %v, want %v", step, second.losses[step], loss)
				}
			}
			if len(first.losses)+len(second.losses) != len(want.losses) {
				t.Errorf("the parts have %d and %d steps, want %d together", len(first.losses), len(second.losses), len(want.losses))
			}
			wantSameTensors(t, savedTensors(t, c), whole)
		})
	}
}

// TestServedLayers: a run whose layers lie on servers too has the losses of a run without
// servers, but for what Adagrad rounds otherwise by rows: also if it goes on from a checkpoint of
// a run without, and then without again, and with asynchronous servers its AUC is near.
func TestServedLayers(t *testing.T) {
	cfg := smallRec(t)
	cfg.Epochs, cfg.Decay, cfg.Accumulate = 0.5, 0.01, 2
	want := newLog()
	if err := trainSummed(t.Context(), cfg, 2, want); err != nil {
		t.Fatal(err)
	}
	layered := func(servers int, sees string) RecConfig {
		c := servedRec(cfg, servers, 0)
		c.Layers, c.Sees = true, sees
		return c
	}
	near := func(what string, got float64, want, by float64) {
		if d := got - want; !(d >= -by && d <= by) {
			t.Errorf("%s is %v, without servers %v", what, got, want)
		}
	}
	c := layered(2, "")
	c.Out = t.TempDir()
	parts := []RecConfig{servedRec(c, 0, 0), c, servedRec(c, 0, 0)}
	parts[0].Layers, parts[2].Layers = false, false
	for i, epochs := range []float64{0.1, 0.3, 0.5} {
		parts[i].Epochs = epochs
		got := newLog()
		if err := trainSummed(t.Context(), parts[i], 2, got); err != nil {
			t.Fatal(err)
		}
		for step, loss := range got.losses {
			near(fmt.Sprintf("part %d: the loss of step %d", i, step), loss, want.losses[step], 1e-4)
		}
		if len(got.losses) == 0 {
			t.Errorf("part %d has no steps", i)
		}
		if i == 2 {
			near("the AUC", got.finish.Metrics[0].Value, want.finish.Metrics[0].Value, 1e-4)
		}
	}
	got, loose := newLog(), layered(3, "asynchronous,batch:2")
	loose.Out = t.TempDir()
	if err := trainSummed(t.Context(), loose, 2, got); err != nil {
		t.Fatal(err)
	}
	near("asynchronous: the AUC", got.finish.Metrics[0].Value, want.finish.Metrics[0].Value, 0.03)
}

// TestServersBegun: servers that run already have the rows of the run that goes on, which go
// back to its checkpoint; another run is refused.
func TestServersBegun(t *testing.T) {
	token := transport.NewToken().Text()
	t.Setenv(string(envvar.Token), token)
	addrs, stop, err := inProcess(t.Context(), ServersOptions{Count: 2, Host: "127.0.0.1", Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	cfg := smallRec(t)
	cfg.Epochs, cfg.PSAt = 0.2, addrs
	want := newLog()
	if err := trainSummed(t.Context(), cfg, 2, want); err != nil {
		t.Fatal(err)
	}
	other := cfg
	other.Out = t.TempDir()
	if err := trainSummed(t.Context(), other, 2, Discard); err == nil || !strings.Contains(err.Error(), "the rows of a run that has made") {
		t.Errorf("another run on these servers: %v", err)
	}
	cfg.Epochs = 0.3
	if err := trainSummed(t.Context(), cfg, 2, newLog()); err != nil {
		t.Fatal(err)
	}
	alone := cfg
	alone.Out, alone.PSAt = t.TempDir(), nil
	if err := trainSummed(t.Context(), alone, 2, newLog()); err != nil {
		t.Fatal(err)
	}
	wantSameTensors(t, savedTensors(t, cfg), savedTensors(t, alone))
}

// TestStaleRows: with a staleness rows are pulled ahead, the AUC is near that of the run
// without, and the evaluation says how old they were.
func TestStaleRows(t *testing.T) {
	cfg := smallRec(t)
	want, got := newLog(), newLog()
	if err := trainSummed(t.Context(), cfg, 2, want); err != nil {
		t.Fatal(err)
	}
	served := servedRec(cfg, 2, 4)
	served.Out = t.TempDir()
	if err := trainSummed(t.Context(), served, 2, got); err != nil {
		t.Fatal(err)
	}
	g, w := got.finish.Metrics, want.finish.Metrics
	if len(g) != 3 || g[2].Name != "staleness" || g[2].Value < 0.5 || g[2].Value > 4 {
		t.Errorf("the metrics are %v, want a staleness of one step or more, and at most 4", g)
	}
	if d := g[0].Value - w[0].Value; d < -0.01 || d > 0.01 {
		t.Errorf("the AUC is %v, without servers %v", g[0].Value, w[0].Value)
	}
}

// TestAsynchronousRows: asynchronous servers, and such as apply the pushes of several ranks at
// once, train to an AUC near that of the run without, also if the ranks have unlike numbers of
// rows.
func TestAsynchronousRows(t *testing.T) {
	cfg := smallRec(t)
	want := newLog()
	if err := trainSummed(t.Context(), cfg, 2, want); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		sees           string
		ranks, servers int
	}{{"asynchronous", 2, 3}, {"asynchronous,batch:2", 2, 3}, {"bounded:1,batch:2:mean", 2, 1}, {"asynchronous,batch:3", 3, 2}} {
		served := servedRec(cfg, c.servers, 0)
		served.Sees, served.Out = c.sees, t.TempDir()
		got := newLog()
		if err := trainSummed(t.Context(), served, c.ranks, got); err != nil {
			t.Fatalf("%+v: %v", c, err)
		}
		g, w := got.finish.Metrics, want.finish.Metrics
		if len(g) != 3 || g[2].Name != "staleness" {
			t.Errorf("%+v: the metrics are %v, want a staleness too", c, g)
		}
		if d := g[0].Value - w[0].Value; d < -0.02 || d > 0.02 {
			t.Errorf("%+v: the AUC is %v, without servers %v", c, g[0].Value, w[0].Value)
		}
	}
}

// TestServerLost: a server that ends and does not come back ends the run on all ranks, with its
// number. The checkpoint before is whole, and the run goes on from it with other servers.
func TestServerLost(t *testing.T) {
	cfg := servedRec(smallRec(t), 2, 0)
	cfg.Epochs, cfg.patience = 0.5, 2*time.Second
	var end func() error
	cfg.StartServers = func(ctx context.Context, o ServersOptions) (addrs []string, stop func() error, err error) {
		addrs, stop, err = inProcess(ctx, o)
		end = sync.OnceValue(stop)
		return addrs, end, err
	}
	lost := newLog()
	lost.onStep = func(step int) {
		if step == 31 {
			_ = end()
		}
	}
	err := trainSummed(t.Context(), cfg, 2, lost)
	if err == nil || !strings.Contains(err.Error(), "ps: server ") {
		t.Errorf("the run ended with %v, want an error that names a server", err)
	}
	whole := cfg
	cfg.StartServers, cfg.patience = inProcess, 0
	if err := trainSummed(t.Context(), cfg, 2, newLog()); err != nil {
		t.Fatal(err)
	}
	whole.Out, whole.PS = t.TempDir(), 0
	if err := trainSummed(t.Context(), whole, 2, newLog()); err != nil {
		t.Fatal(err)
	}
	wantSameTensors(t, savedTensors(t, cfg), savedTensors(t, whole))
}

// TestServersOfAnotherRun: a run that finds another one at work in its directory starts no
// servers, which would take the place of the other's.
func TestServersOfAnotherRun(t *testing.T) {
	cfg := servedRec(smallRec(t), 1, 0)
	cfg.StartServers = func(context.Context, ServersOptions) ([]string, func() error, error) {
		t.Error("servers were started")
		return nil, nil, errors.New("never")
	}
	release, err := checkpoint.Claim(cfg.Out)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := trainSummed(t.Context(), cfg, 2, newLog()); err == nil || !strings.Contains(err.Error(), "servers cannot keep rows in") {
		t.Errorf("the run ended with %v", err)
	}
}

var staleSeeds = flag.Int("stale", 0, "seeds of TestStaleAUC, which trains the recipe for each of them")

// TestStaleAUC: rows that are up to four steps old cost less than 0.002 of the AUC of the
// recipe, on the mean of the seeds.
func TestStaleAUC(t *testing.T) {
	if *staleSeeds == 0 {
		t.Skip("trains for minutes: -stale 3")
	}
	kinds := []struct {
		name             string
		staleness, ahead int
	}{{"without servers", -1, 0}, {"synchronous", 0, 0}, {"staleness 1", 1, 1}, {"staleness 4, as it is", 4, 1}, {"staleness 4, always", 4, 3}}
	sums := make([]float64, len(kinds))
	for seed := range *staleSeeds {
		for i, k := range kinds {
			cfg := DefaultRec()
			cfg.Seed, cfg.Out, cfg.Best, cfg.EvalEvery, cfg.SaveEvery = int64(seed+1), t.TempDir(), false, 0, 0
			// The layers take off early or late, by the seed and the rounding. After the epochs of
			// the default some runs have not, also without servers.
			cfg.Epochs *= 3
			if k.staleness >= 0 {
				cfg = servedRec(cfg, 2, k.staleness)
				cfg.ahead = k.ahead
			}
			l := newLog()
			if err := trainSummed(t.Context(), cfg, 2, l); err != nil {
				t.Fatal(err)
			}
			t.Logf("seed %d, %s: %v", seed+1, k.name, l.finish.Metrics)
			sums[i] += l.finish.Metrics[0].Value / float64(*staleSeeds)
		}
	}
	for i, k := range kinds {
		t.Logf("%s: AUC %.4f in the mean, %+.4f", k.name, sums[i], sums[i]-sums[0])
		if sums[i] < sums[0]-0.002 {
			t.Errorf("%s loses more than 0.002 of the AUC", k.name)
		}
	}
}

func TestServerSettings(t *testing.T) {
	for want, change := range map[string]func(c *RecConfig){
		"--ps-consistency is about":     func(c *RecConfig) { c.Sees = "asynchronous" },
		"which the pushes of 3 ra":      func(c *RecConfig) { c.PS, c.Ranks, c.Sees = 1, 3, "asynchronous,batch:2" },
		"leave the batch out":           func(c *RecConfig) { c.PS, c.Sees = 1, "synchronous,batch:2" },
		"is --ps-consistency bounded:2": func(c *RecConfig) { c.PS, c.Staleness, c.Sees = 1, 2, "asynchronous" },
		"--staleness is about":          func(c *RecConfig) { c.Staleness = 2 },
		"leave one of them":             func(c *RecConfig) { c.PS, c.PSAt = 1, []string{"a:1"} },
		"want HOST:PORT":                func(c *RecConfig) { c.PSAt = []string{"a"} },
		"has a:1 twice":                 func(c *RecConfig) { c.PSAt = []string{"a:1", "a:1"} },
		"--clip needs":                  func(c *RecConfig) { c.PS, c.Clip = 1, 1 },
		"--prove does":                  func(c *RecConfig) { c.PS, c.Prove = 1, true },
		"--init-from gives":             func(c *RecConfig) { c.PS, c.InitFrom = 1, "x" },
		"--ps-layers is about":          func(c *RecConfig) { c.Layers = true },
		"--zero1 divides":               func(c *RecConfig) { c.PS, c.Layers, c.ZeRO1 = 1, true, true },
		"--hook says":                   func(c *RecConfig) { c.PS, c.Layers, c.Hook = 1, true, "bf16" },
		"--ps is -1":                    func(c *RecConfig) { c.PS = -1 },
		"--fsdp splits":                 func(c *RecConfig) { c.PS, c.Ranks, c.FSDP = 1, 2, 2 },
		"--diloco averages":             func(c *RecConfig) { c.PS, c.DiLoCo, c.Islands, c.IslandsAt = 1, 5, 2, "a:1" },
	} {
		c := DefaultRec()
		if change(&c); c.Validate() == nil || !strings.Contains(c.Validate().Error(), want) {
			t.Errorf("got %v, want %q", c.Validate(), want)
		}
	}
}
