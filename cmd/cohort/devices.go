// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/device"
	"github.com/cohort-ml/cohort/internal/device/cuda"
	"github.com/cohort-ml/cohort/internal/devices"
	"github.com/cohort-ml/cohort/internal/visible"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/tensor"
)

func newDevicesCommand() *cobra.Command {
	var asJSON, measure, check bool
	var threads, ranks int
	var device string
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List what a rank can compute on, and how fast it is",
		Long: `List the processors that this process may use, with their features, caches and
memory, and the rates of a matrix product and of a copy. List the GPUs that
NVIDIA's driver knows, with memory, driver and links. Cohort itself computes on
processors; GPUs serve the PyTorch ranks of a job. Lines that begin with cuda say
which of CUDA's libraries a program built with -tags cuda finds, or what is missing.

With --device cuda the command fails if CUDA cannot be used. A program that was
built without CUDA then runs cohort-cuda, which lies beside it.

With --check, ranks are started as cohort run starts them. Each one multiplies two
matrices, which is compared with plain loops, and then all of them add up a tensor
by an all-reduce.`,
		Example: `  cohort devices
  cohort devices --json --measure=false
  cohort devices --check --ranks 4
  cohort devices --device cuda`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ranks < 1 || ranks > 256 {
				return usageError{fmt.Errorf("--ranks %d: want 1 to 256", ranks)}
			}
			if launch.IsRank() {
				return checkDevices(cmd.Context(), ranks)
			}
			if err := setThreads(threads); err != nil {
				return err
			}
			if err := useDevice(device); err != nil {
				return err
			}
			found := cuda.Probe()
			if device == "cuda" && !found.Usable() {
				return fmt.Errorf("devices: --device cuda: %s", strings.Join(found.Problems, "; "))
			}
			l := devices.Find(cmd.Context())
			if measure {
				r, err := devices.Measure(cmd.Context(), tensor.NumThreads(), 300*time.Millisecond)
				if err != nil {
					return err
				}
				l.CPU.Rates = &r
			}
			out := struct {
				devices.List
				CUDA  cuda.Status `json:"cuda"`
				Check string      `json:"check,omitempty"`
			}{List: l, CUDA: found}
			if check {
				launch.KeepSecrets()
				if err := checkDevices(cmd.Context(), ranks); err != nil {
					return err
				}
				out.Check = fmt.Sprintf("the product and the all-reduce of %d ranks are right", ranks)
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(out)
			}
			var b strings.Builder
			writeDevices(&b, l)
			found.Write(&b)
			if check {
				fmt.Fprintf(&b, "check: %s\n", out.Check)
			}
			_, err := io.WriteString(cmd.OutOrStdout(), visible.Text(b.String()))
			return err
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&asJSON, "json", false, "print one JSON object")
	fl.BoolVar(&measure, "measure", true, "measure rates, for a third of a second")
	fl.BoolVar(&check, "check", false, "start ranks that multiply and communicate, and check their results")
	fl.StringVar(&device, "device", "cpu", "what must be usable: cpu or cuda")
	fl.IntVar(&ranks, "ranks", 2, "number of ranks for --check")
	oneOf(fl, "device", "cpu", "cuda")
	threadsFlag(cmd, &threads)
	return cmd
}

// checkDevices starts ranks that compute a product and an all-reduce. In a rank it is one of
// them.
func checkDevices(ctx context.Context, ranks int) error {
	rank := dist.Main(func(ctx context.Context, g *dist.Group) error {
		if err := devices.CheckProduct(1); err != nil {
			return err
		}
		const n = 100_000
		values := make([]float32, n)
		for i := range values {
			values[i] = float32(g.Rank() + i%7)
		}
		t := tensor.FromFloat32(values, n)
		defer t.Free()
		if err := g.AllReduce(ctx, t, dist.Sum); err != nil {
			return err
		}
		size := g.Size()
		for i, got := range t.Float32s() {
			if want := float32(size*(size-1)/2 + size*(i%7)); got != want {
				return fmt.Errorf("devices: element %d of an all-reduce of %d ranks is %g and should be %g: this machine's memory is not to be trusted; run a memory test", i, size, got, want)
			}
		}
		return nil
	})
	err := launch.Spawn(ctx, ranks, rank, launch.WithEnv(os.Environ()))
	if err != nil && !launch.IsRank() && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("devices: the check on %d ranks failed: %w", ranks, err)
	}
	return err
}

func writeDevices(w io.Writer, l devices.List) {
	c := l.CPU
	count := func(n int, what string) string {
		if n == 1 {
			return "1 " + what
		}
		return fmt.Sprintf("%d %ss", n, what)
	}
	name := c.Model
	if name == "" {
		name = "a processor that the system does not name"
	}
	fmt.Fprintf(w, "cpu: %s\n", name)
	parts := []string{count(c.Threads, "thread")}
	for _, p := range []struct {
		n    int
		what string
	}{{c.Cores, "core"}, {c.Sockets, "socket"}, {c.NUMANodes, "NUMA node"}} {
		if p.n > 0 {
			parts = append(parts, count(p.n, p.what))
		}
	}
	fmt.Fprintf(w, "  %s\n", strings.Join(parts, ", "))
	if c.Online > c.Threads {
		fmt.Fprintf(w, "  the machine has %s, and this process may use %d of them\n", count(c.Online, "thread"), c.Threads)
	}
	if c.Quota > 0 {
		fmt.Fprintf(w, "  the cgroup may use the time of %.4g processors\n", c.Quota)
	}
	if len(c.Features) > 0 {
		fmt.Fprintf(w, "  features: %s\n", strings.Join(c.Features, " "))
	}
	parts = nil
	for _, k := range c.Caches {
		kind := map[string]string{"data": "d", "instruction": "i"}[k.Kind]
		text := fmt.Sprintf("L%d%s %s", k.Level, kind, device.Size(k.Bytes))
		if k.SharedBy > 1 {
			text += fmt.Sprintf(" for %d threads", k.SharedBy)
		}
		parts = append(parts, text)
	}
	if parts != nil {
		fmt.Fprintf(w, "  caches: %s\n", strings.Join(parts, ", "))
	}
	if c.Memory > 0 {
		fmt.Fprintf(w, "  memory: %s\n", device.Size(c.Memory))
	}
	if r := c.Rates; r != nil {
		fmt.Fprintf(w, "  measured with %s: float32 products %.1f GFLOP/s, copies %.1f GB/s read and written\n",
			count(r.Threads, "thread"), r.GFlopPerSec, r.CopyBytesPerSec/1e9)
	}
	for _, g := range l.GPUs {
		fmt.Fprintf(w, "gpu %d: %s\n", g.Index, g.Model)
		parts := []string{}
		if g.Memory > 0 {
			parts = append(parts, fmt.Sprintf("%s of memory, %s used", device.Size(g.Memory), device.Size(g.Used)))
		}
		if g.Driver != "" {
			parts = append(parts, "driver "+g.Driver)
		}
		if g.NUMANode >= 0 {
			parts = append(parts, fmt.Sprintf("NUMA node %d", g.NUMANode))
		}
		for i, link := range g.Links {
			if link != "" {
				parts = append(parts, fmt.Sprintf("%s to gpu %d", link, i))
			}
		}
		fmt.Fprintf(w, "  %s\n", strings.Join(parts, ", "))
	}
	if len(l.GPUs) == 0 {
		fmt.Fprintln(w, "gpu: none")
	}
	for _, n := range l.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
}
