// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/dlopen"
	"github.com/cohort-ml/cohort/internal/envvar"
)

// mpiRole begins the role of a rank that an MPI has started. The number of its row follows.
const mpiRole = "mpi "

// mpiRow is a training that ranks of an MPI do as other ranks do.
type mpiRow struct {
	strategy         string
	replicate, shard int
	variant          string // of equivalenceVariants
	mixed            bool   // gathers and reduces in bfloat16, which no MPI adds
}

var mpiRows = []mpiRow{
	{"ddp", 2, 1, "all of these", false}, {"fsdp", 1, 2, "all of these", false}, {"fsdp", 1, 2, "tied", true},
	{"ddp", 3, 1, "accumulation", false}, {"fsdp", 1, 3, "plain", false}, {"fsdp", 2, 2, "tied", false},
}

func (r mpiRow) String() string {
	name := fmt.Sprintf("%s %d × %d, %s", r.strategy, r.replicate, r.shard, r.variant)
	if r.mixed {
		name += ", bfloat16"
	}
	return name
}

func (r mpiRow) draw() draw {
	d := equivalent()
	d.Optimizer, d.Strategy, d.Replicate, d.Shard, d.BFloat16, d.Mixed = "adamw", r.strategy, r.replicate, r.shard, r.mixed, r.mixed
	equivalenceVariants[r.variant](&d)
	return d
}

// mpiTrained is how a rank's training ends.
type mpiTrained struct {
	Losses []float64
	State  string // a digest of its parameters
}

// run trains on a rank.
func (r mpiRow) run(ctx context.Context, g *dist.Group) (mpiTrained, error) {
	d := r.draw()
	tr, err := d.newTrainer(func(m *lawModel) (Strategy, error) { return d.wrap(ctx, g, m) })
	if err != nil {
		return mpiTrained{}, err
	}
	tr.spread(g.Size())
	losses, err := tr.lossesOf(ctx, 10, g.Rank())
	if err != nil {
		return mpiTrained{}, err
	}
	tr.keepState()
	h := crc32.NewIEEE()
	for _, name := range slices.Sorted(maps.Keys(tr.out.state)) {
		fmt.Fprintln(h, name, tr.out.state[name])
	}
	return mpiTrained{losses, fmt.Sprintf("%08x", h.Sum32())}, nil
}

// runMPI is a rank that an MPI has started. It writes what it has trained into a directory.
func runMPI(ctx context.Context, g *dist.Group, role string) error {
	number, dir, _ := strings.Cut(strings.TrimPrefix(role, mpiRole), " ")
	i, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	if g.Transport() != "mpi" {
		return fmt.Errorf("the transport is %s, want mpi", g.Transport())
	}
	got, err := mpiRows[i].run(ctx, g)
	if err != nil {
		return err
	}
	text, err := json.Marshal(got)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, strconv.Itoa(g.Rank())), text, 0o600)
}

// TestMPI trains with DDP and FSDP on ranks of each MPI of this machine (COHORT_TEST_MPIRUNS
// lists more launchers than those in PATH). Two ranks have the bits of native ones, as a sum of two
// does not depend on who adds. More have native's losses but for rounding.
func TestMPI(t *testing.T) {
	if !dlopen.Built {
		t.Skip("this test binary cannot load an MPI: go test -tags mpi ./parallel -run TestMPI")
	}
	native := make([][]mpiTrained, len(mpiRows))
	for i, row := range mpiRows {
		native[i] = make([]mpiTrained, row.draw().ranks())
		err := spawn(t, len(native[i]), func(ctx context.Context, g *dist.Group) (err error) {
			native[i][g.Rank()], err = row.run(ctx, g)
			return err
		})
		if err != nil {
			t.Fatalf("%v: %v", row, err)
		}
	}
	found := false
	for _, name := range append([]string{"mpirun.openmpi", "mpirun.mpich"}, filepath.SplitList(os.Getenv("COHORT_TEST_MPIRUNS"))...) {
		launcher, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		found = true
		for i, row := range mpiRows {
			t.Run(fmt.Sprintf("%s/%v", name, row), func(t *testing.T) { compareMPI(t, launcher, i, native[i]) })
		}
	}
	if !found {
		t.Skip("there is no mpirun: apt-get install openmpi-bin mpich")
	}
}

// compareMPI trains a row on the ranks of an MPI, and compares them with native ones.
func compareMPI(t *testing.T, launcher string, row int, native []mpiTrained) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), launcher, "-n", strconv.Itoa(len(native)), os.Args[0])
	cmd.Env = append(os.Environ(), rankRole+"="+mpiRole+strconv.Itoa(row)+" "+dir, envvar.Backend.Assign("mpi"), envvar.NumThreads.Assign("1"),
		"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "OMPI_MCA_rmaps_base_oversubscribe=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := make([]mpiTrained, len(native))
	for rank := range got {
		text, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(rank)))
		if err == nil {
			err = json.Unmarshal(text, &got[rank])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for rank, want := range native {
		if len(native) == 2 && (!slices.Equal(got[rank].Losses, want.Losses) || got[rank].State != want.State) {
			t.Errorf("rank %d has losses %v and state %s, native ones are %v and %s", rank, got[rank].Losses, got[rank].State, want.Losses, want.State)
		}
		if len(got[rank].Losses) != len(want.Losses) {
			t.Fatalf("rank %d has %d losses, want %d", rank, len(got[rank].Losses), len(want.Losses))
		}
		for step, loss := range want.Losses {
			if !(math.Abs(got[rank].Losses[step]-loss) <= 1e-5*math.Abs(loss)) {
				t.Errorf("rank %d, step %d: the loss is %v, native %v", rank, step, got[rank].Losses[step], loss)
			}
		}
	}
}
