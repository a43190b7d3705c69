// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/launch"
)

var (
	//go:embed train.py
	trainScript string
	//go:embed feed.py
	feedScript string
	//go:embed store.py
	storeScript string
)

// limit is how long an example may take. It needs about ten seconds. Python needs
// most of them to load PyTorch.
const limit = 5 * time.Minute

func main() {
	python := flag.String("python", "", "a Python with PyTorch; without, the first that is found")
	dir := flag.String("data", "", "a directory with MNIST's four files; without, the digits that come with Cohort, enlarged")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), `Usage: pytorch-mixed [flags] [train|feed|store]

  train   two ranks of PyTorch and two of Cohort train one model (default)
  feed    a Go rank makes the batches for two PyTorch ranks
  store   a Python script uses a store that a Go program serves

`)
		flag.PrintDefaults()
	}
	flag.Parse()
	what := "train"
	if flag.NArg() > 0 {
		what = flag.Arg(0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := run(ctx, what, *python, *dir)
	if failed := (*launch.Error)(nil); errors.As(err, &failed) {
		launch.Exit(err)
	}
	if err != nil {
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
	work, err := os.MkdirTemp("", "cohort-pytorch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if dir == "" {
		dir = work
		if err := writeDigits(ctx, dir); err != nil {
			return err
		}
	}
	file := filepath.Join(work, what+".py")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// As a command line: cohort run --program "2:train.py DIR" --program "2:./pytorch-mixed -data DIR train".
	// Rank 0 is a Python program, so the launcher serves the store in which the ranks meet.
	return launch.Run(ctx, launch.Config{
		Programs: []launch.Program{
			{Path: file, Args: []string{dir}, NumRanks: ranksOfPython},
			{Path: self, Args: []string{"-data", dir, what}, NumRanks: ranksOfGo},
		},
		Env: append(os.Environ(), "PYTHON_EXEC="+python),
	})
}

// needPyTorch finds a Python with PyTorch. If there is none, its error says what is missing.
func needPyTorch(ctx context.Context, python string) (string, error) {
	candidates := []string{"python3", "/usr/bin/python3"}
	if python != "" {
		candidates = []string{python}
	}
	var why []string
	for _, c := range candidates {
		out, err := exec.CommandContext(ctx, c, "-c", "import torch.distributed as d; d.ProcessGroupGloo; print(d.torch.__version__)").CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		version := lines[len(lines)-1] // warnings come before it
		if err == nil && strings.Contains(version, ".") {
			fmt.Printf("PyTorch %s (%s)\n", version, c)
			return c, nil
		}
		if err == nil {
			err = errors.New("it is no Python")
		}
		if len(out) == 0 {
			lines = []string{err.Error()}
		}
		why = append(why, fmt.Sprintf("%s: %s", c, lines[len(lines)-1]))
	}
	return "", fmt.Errorf("no Python with PyTorch and gloo (%s): install it by `apt-get install python3-torch` or `pip install torch`, or name a Python that has it: --python PATH", strings.Join(why, "; "))
}

// writeDigits writes the digits of Cohort in the format of MNIST's files. Each of
// the 8·8 pixels becomes a block of nine, and the image gets a border of two pixels.
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
