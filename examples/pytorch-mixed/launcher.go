// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/dist/store"
)

var (
	//go:embed train.py
	trainScript string
	//go:embed feed.py
	feedScript string
	//go:embed store.py
	storeScript string
)

// limit is how long an example may take; it needs some ten seconds, most of
// which Python takes to load PyTorch.
const limit = 5 * time.Minute

func main() {
	python := flag.String("python", "", "a Python with PyTorch; without, the first that is found")
	dir := flag.String("data", "", "a directory with MNIST's four files; without, the digits that come with Cohort, enlarged")
	flag.Parse()
	what := "train"
	if flag.NArg() > 0 {
		what = flag.Arg(0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := run(ctx, what, *python, *dir); err != nil {
		fmt.Fprintln(os.Stderr, "pytorch-mixed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, what, python, dir string) error {
	if os.Getenv("RANK") != "" {
		return rank(ctx, what, dir)
	}
	python, err := needPyTorch(ctx, python)
	if err != nil {
		return err
	}
	if what == "store" {
		return useStore(ctx, python)
	}
	script, ranksOfPython, ranksOfGo := trainScript, 2, 2
	switch what {
	case "train":
	case "feed":
		script, ranksOfGo = feedScript, 1
	default:
		return fmt.Errorf("no example %q: there are train, feed and store", what)
	}
	if dir == "" {
		made, err := os.MkdirTemp("", "cohort-digits-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(made)
		if dir = made; err == nil {
			err = writeDigits(ctx, dir)
		}
		if err != nil {
			return err
		}
	}
	return start(ctx, ranksOfPython, ranksOfGo, func(ctx context.Context, r int) *exec.Cmd {
		if r < ranksOfPython {
			cmd := exec.CommandContext(ctx, python, "-", dir)
			cmd.Stdin = strings.NewReader(script)
			return cmd
		}
		return exec.CommandContext(ctx, os.Args[0], "-data", dir, what)
	})
}

// needPyTorch finds a Python with PyTorch, or says what is missing.
func needPyTorch(ctx context.Context, python string) (string, error) {
	candidates := []string{"python3", "/usr/bin/python3"}
	if python != "" {
		candidates = []string{python}
	}
	var why []string
	for _, c := range candidates {
		out, err := exec.CommandContext(ctx, c, "-c", "import torch.distributed as d; d.ProcessGroupGloo; print(d.torch.__version__)").CombinedOutput()
		if err == nil {
			fmt.Printf("PyTorch %s (%s)\n", strings.TrimSpace(string(out)), c)
			return c, nil
		}
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if len(out) == 0 {
			lines = []string{err.Error()}
		}
		why = append(why, fmt.Sprintf("%s: %s", c, lines[len(lines)-1]))
	}
	return "", fmt.Errorf("no Python with PyTorch and gloo (%s): install it by `apt-get install python3-torch` or `pip install torch`, or name a Python that has it: --python PATH", strings.Join(why, "; "))
}

// start serves the store at which the ranks meet, runs them, and stops all of
// them when one fails.
func start(ctx context.Context, ranksOfPython, ranksOfGo int, command func(ctx context.Context, rank int) *exec.Cmd) error {
	server, err := store.ListenPyTorch("127.0.0.1:0", store.PyTorchServerConfig{})
	if err != nil {
		return err
	}
	defer server.Close()
	host, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var ranks sync.WaitGroup
	size := ranksOfPython + ranksOfGo
	for r := range size {
		cmd := command(ctx, r)
		// The variables of torchrun. The last two say that the store is there
		// already, so that rank 0 need not serve one.
		cmd.Env = append(os.Environ(),
			"RANK="+strconv.Itoa(r), "WORLD_SIZE="+strconv.Itoa(size), "LOCAL_RANK="+strconv.Itoa(r), "LOCAL_WORLD_SIZE="+strconv.Itoa(size),
			"MASTER_ADDR="+host, "MASTER_PORT="+port, "TORCHELASTIC_USE_AGENT_STORE=True", "TORCHELASTIC_RESTART_COUNT=0")
		var errors bytes.Buffer
		cmd.Stdout, cmd.Stderr = os.Stdout, &errors
		cmd.WaitDelay = 5 * time.Second
		if err := cmd.Start(); err != nil {
			cancel(err)
			break
		}
		ranks.Go(func() {
			if err := cmd.Wait(); err != nil {
				cancel(fmt.Errorf("rank %d: %w\n%s", r, err, errors.String()))
			}
		})
	}
	ranks.Wait()
	return context.Cause(ctx)
}

// writeDigits writes the digits that come with Cohort as MNIST's files have
// them: of 8·8 pixels each becomes nine, with a rim of two.
func writeDigits(ctx context.Context, dir string) error {
	training, test, err := vision.Digits()
	if err != nil {
		return err
	}
	for name, set := range map[string]*vision.Set{"train": training, "t10k": test} {
		var images, labels bytes.Buffer
		header := func(b *bytes.Buffer, dims ...uint32) {
			b.Write([]byte{0, 0, 8, byte(len(dims))})
			for _, d := range dims {
				b.Write(binary.BigEndian.AppendUint32(nil, d))
			}
		}
		n := uint32(set.Len())
		header(&images, n, 28, 28)
		header(&labels, n)
		for i := range set.Len() {
			s, err := set.Get(ctx, data.Key{Index: i})
			if err != nil {
				return err
			}
			for y := range 28 {
				for x := range 28 {
					var v byte
					if y >= 2 && y < 26 && x >= 2 && x < 26 {
						v = s.Image.Pix[(y-2)/3*8+(x-2)/3]
					}
					images.WriteByte(v)
				}
			}
			labels.WriteByte(byte(s.Label))
		}
		for suffix, b := range map[string]*bytes.Buffer{"-images-idx3-ubyte": &images, "-labels-idx1-ubyte": &labels} {
			if err := os.WriteFile(filepath.Join(dir, name+suffix), b.Bytes(), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}
