// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-ml/cohort/dist/operation"
	"github.com/cohort-ml/cohort/internal/dlopen"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/loaded"
	"github.com/cohort-ml/cohort/tensor"
)

// Ranks of an MPI are processes of its mpirun. The tests need a test binary that loads
// libraries, and at least one MPI:
//
//	apt-get install openmpi-bin mpich; python3 -m venv mpi && mpi/bin/pip install mpich
//	COHORT_TEST_MPIRUNS=$PWD/mpi/bin/mpirun go test -tags mpi ./dist -run TestMPI
//
// COHORT_TEST_MPIRUNS lists more launchers than those in PATH, separated by colons. With
// DIST_TEST_MPI_SRUN=1 the srun of a Slurm whose nodes have Open MPI and MPICH starts ranks too.

// mpiOut is the variable with the directory into which each rank writes how it ended.
const mpiOut = "DIST_TEST_MPI_OUT"

// mpiSrun is the variable that has srun start ranks.
const mpiSrun = "DIST_TEST_MPI_SRUN"

// mpiKept is the variable that makes this test binary the keeper of a rank.
const mpiKept = "DIST_TEST_MPI_KEPT"

// mpirun is the launcher of an MPI.
type mpirun struct {
	name string
	args []string
	open bool // it is Open MPI's, or leaves the ranks time as that does
	env  []string
}

// mpiruns returns the launchers of this machine, each with the arguments that tests want.
func mpiruns(t testing.TB) []mpirun {
	t.Helper()
	if !dlopen.Built {
		t.Skip("this test binary cannot load an MPI: go test -tags mpi ./dist -run TestMPI")
	}
	var all []mpirun
	for _, name := range append([]string{"mpirun.openmpi", "mpirun.mpich"}, filepath.SplitList(os.Getenv("COHORT_TEST_MPIRUNS"))...) {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		version, _ := exec.Command(path, "--version").CombinedOutput()
		m := mpirun{name: filepath.Base(name), args: []string{path}, open: strings.Contains(string(version), "Open MPI") || strings.Contains(string(version), "OpenRTE")}
		if m.open {
			m.args = append(m.args, "--allow-run-as-root", "--oversubscribe")
		} else {
			m.args = append(m.args, "-disable-auto-cleanup") // else it kills the others before they can name a rank that has died
			if filepath.Dir(path) != "/usr/bin" {
				m.name = "standard"
			}
		}
		all = append(all, m)
	}
	if os.Getenv(mpiSrun) != "" {
		all = append(all, mpirun{name: "srun-pmix", args: []string{"srun", "--overcommit", "--wait=3", "--mpi=pmix"}, open: true, env: []string{"COHORT_MPI=libmpi.so.40"}},
			mpirun{name: "srun-pmi2", args: []string{"srun", "--overcommit", "--wait=3", "--mpi=pmi2"}, open: true, env: []string{"COHORT_MPI=libmpich.so.12"}})
	}
	if len(all) == 0 {
		t.Skip("there is no mpirun: apt-get install openmpi-bin mpich")
	}
	return all
}

// command returns the command that starts n ranks which run a function of rankMains.
func (m mpirun) command(t testing.TB, n int, name string, env ...string) *exec.Cmd {
	t.Helper()
	args := append(m.args[1:len(m.args):len(m.args)], "-n", strconv.Itoa(n), os.Args[0])
	cmd := exec.CommandContext(t.Context(), m.args[0], args...)
	cmd.Env = append(os.Environ(), rankMain+"="+name, rankBackend+"=mpi", envvar.Transport.Assign(""))
	cmd.Env = append(append(cmd.Env, m.env...), env...)
	return cmd
}

// TestMPIOperations runs the operations of the oracle, random sequences on overlapping groups,
// messages, and groups at once, on ranks of each MPI of this machine.
func TestMPIOperations(t *testing.T) {
	for _, m := range mpiruns(t) {
		for _, name := range []string{"mpi operations", "mpi sequences", "messages", "groups"} {
			for _, n := range []int{2, 3, 5} { // 5 ranks use the collectives of the MPI where fewer exchange data themselves
				if n != 3 && strings.Contains("messages groups", name) || n == 5 && name == "mpi sequences" {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%d", m.name, name, n), func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), loaded.Allow(time.Minute))
					defer cancel()
					cmd := m.command(t, n, name)
					cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
					context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
					if out, err := cmd.CombinedOutput(); err != nil {
						t.Errorf("%v\n%s", err, out)
					}
				})
			}
		}
	}
}

// mpiOperations runs a choice of operations in which every two factors meet, as TestOperations
// does for other transports.
func mpiOperations(ctx context.Context, g *Group) error {
	if g.Transport() != "mpi" {
		return fmt.Errorf("the transport is %s, want mpi", g.Transport())
	}
	seed := *caseSeed
	for i, c := range pairwise(rand.New(rand.NewPCG(seed, 0))) {
		if i%len(transports) != g.Size()%len(transports) && os.Getenv("DIST_TEST_MPI_ALL") == "" { // a sample
			continue
		}
		if err := c.one(g.Size()).run(ctx, g); err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
	}
	if err := g.Close(); err != nil {
		return err
	}
	return goleak.Find(goleak.IgnoreAnyFunction("github.com/cohort-ml/cohort/internal/work.(*worker).serve"))
}

// mpiSequences plays random sequences on overlapping groups.
func mpiSequences(ctx context.Context, g *Group) error {
	for seed := *caseSeed; seed < *caseSeed+3; seed++ {
		if err := newSequence(seed, g.Size(), 60).play(ctx, g); err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
	}
	return nil
}

// mpiReport writes how a rank has ended where the test looks for it, before the launcher ends
// the rank.
func mpiReport(g *Group, text string) error {
	return os.WriteFile(filepath.Join(os.Getenv(mpiOut), strconv.Itoa(g.Rank())), []byte(text), 0o600)
}

// mpiWait says that it is there and runs collectives until one fails. The last rank stops.
func mpiWait(ctx context.Context, g *Group) error {
	x := filled(tensor.Float32, 100_000, g.Rank())
	for i := 0; ; i++ {
		if i == 3 {
			if err := mpiReport(g, "ready "+strconv.Itoa(os.Getpid())); err != nil {
				return err
			}
			if g.Rank() == g.Size()-1 {
				select {}
			}
		}
		if err := g.AllReduce(ctx, x, Sum); err != nil {
			told := mpiReport(g, err.Error())
			time.Sleep(consequencePause) // as Main does: a launcher ends the others when a rank ends badly
			return errors.Join(told, err)
		}
	}
}

// awaitReports waits until every rank has written a report that begins so, and returns them.
// A rank that is excused need not.
func awaitReports(t *testing.T, dir string, n int, begins string, excused func(r int) bool) []string {
	t.Helper()
	limit := time.Now().Add(loaded.Allow(5 * time.Second))
	all := make([]string, n)
	for r := 0; r < n; {
		text, _ := os.ReadFile(filepath.Join(dir, strconv.Itoa(r)))
		if all[r] = string(text); strings.HasPrefix(all[r], begins) && len(text) > 0 || excused(r) {
			r++
			continue
		}
		if time.Now().After(limit) {
			t.Fatalf("rank %d has written %q, want %q…", r, text, begins)
		}
		time.Sleep(time.Millisecond)
	}
	return all
}

// TestMPIKilledRank kills a rank: the others name it before the launcher ends them.
func TestMPIKilledRank(t *testing.T) {
	const n = 3
	for _, m := range mpiruns(t) {
		for _, victim := range []int{0, 2} {
			t.Run(fmt.Sprintf("%s/rank%d", m.name, victim), func(t *testing.T) {
				dir := t.TempDir()
				env := []string{mpiOut + "=" + dir}
				if !m.open { // hydra kills at once: a keeper of each rank is between
					env = append(env, mpiKept+"=1")
				}
				cmd := m.command(t, n, "mpi wait", env...)
				var said rankProcess // what the ranks and the launcher print
				said.line = make(chan struct{})
				cmd.Stdout, cmd.Stderr = &said, &said
				t.Cleanup(func() {
					if t.Failed() {
						t.Logf("the ranks have printed:\n%s", said.output())
					}
				})
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				ready := awaitReports(t, dir, n, "ready ", func(int) bool { return false })
				pid, err := strconv.Atoi(strings.TrimPrefix(ready[victim], "ready "))
				if err != nil {
					t.Fatal(err)
				}
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				// The last one waits for nobody. The library of MPICH 4.0 aborts a rank that
				// reads the memory of a dead one.
				aborted := func(r int) bool {
					line := regexp.MustCompile(`\[\S+:` + strings.TrimPrefix(ready[r], "ready ") + ` *:.* process_vm_readv\(pid=` + strconv.Itoa(pid) + `.* No such process`)
					return !m.open && line.MatchString(said.output())
				}
				reports := awaitReports(t, dir, n-1, "dist: ", func(r int) bool { return r == victim || aborted(r) })
				for r, text := range reports {
					if r != victim && !aborted(r) && (!strings.Contains(text, fmt.Sprintf("rank %d (host", victim)) || !strings.Contains(text, "died")) {
						t.Errorf("rank %d says %q, which does not name rank %d", r, text, victim)
					}
				}
				if err := cmd.Wait(); err == nil {
					t.Error("the launcher ended as if nothing had happened")
				}
				if line := fmt.Sprintf("cohort: rank %d (host ", victim); !m.open && !strings.Contains(said.output(), line) {
					t.Errorf("the keeper has not said %q", line)
				}
				for r, text := range ready { // cmd.Wait waits until no process has the output open
					awaitGone(t, r, strings.TrimPrefix(text, "ready "))
				}
			})
		}
	}
}

// awaitGone waits until the process of a rank has ended; who has inherited it may not have
// noticed.
func awaitGone(t *testing.T, rank int, pid string) {
	t.Helper()
	for limit := time.Now().Add(loaded.Allow(5 * time.Second)); ; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(limit) {
			t.Errorf("rank %d is still there: process %s", rank, pid)
			return
		}
	}
}

// mpiMismatch has one rank call something else, in several ways, each on a group of its own.
func mpiMismatch(ctx context.Context, g *Group) error {
	x := filled(tensor.Float32, 1000, g.Rank())
	last := g.Rank() == g.Size()-1
	all := make([]int, g.Size())
	for r := range all {
		all[r] = r
	}
	for i, call := range []func(g *Group) error{
		func(g *Group) error { // another reduction, of a size that has been called before
			if err := g.AllReduce(ctx, x, Sum); err != nil {
				return err
			}
			if err := g.AllReduce(ctx, x, Product); err != nil {
				return err
			}
			if last {
				return g.AllReduce(ctx, x, Product)
			}
			return g.AllReduce(ctx, x, Sum)
		},
		func(g *Group) error { // another root
			root := 0
			if last {
				root = 1
			}
			return g.Broadcast(ctx, x, root)
		},
		func(g *Group) error { // another operation
			if last {
				return g.Barrier(ctx)
			}
			return g.AllReduce(ctx, x, Sum)
		},
		func(g *Group) error { // another operation, where both have been called before
			return mpiKnownMismatch(ctx, g, last, func() error { return g.Broadcast(ctx, x, 0) })
		},
		func(g *Group) error { // the same, and another size
			part := filled(tensor.Float32, 7, g.Rank())
			return mpiKnownMismatch(ctx, g, last, func() error {
				return g.ReduceScatter(ctx, part, filled(tensor.Float32, 7*g.Size(), g.Rank()), Sum)
			})
		},
		func(g *Group) error { // two that the MPI does in its blocking form, with 5 ranks
			return mpiKnownMismatch(ctx, g, last, func() error {
				return g.AllGather(ctx, filled(tensor.Float32, 1000*g.Size(), 0), x)
			})
		},
	} {
		sub, err := g.NewGroup(ctx, all, WithName(fmt.Sprintf("case %d", i)), WithTimeout(20*time.Second))
		if err != nil {
			return err
		}
		err = call(sub)
		var mismatch *MismatchError
		if !errors.As(err, &mismatch) {
			return fmt.Errorf("case %d: %v, want a mismatch", i, err)
		}
		_ = sub.Close()
	}
	return mpiReport(g, "ended")
}

// mpiKnownMismatch has the last rank call something else than an all-reduce, after all ranks
// have called both: they compare such calls while the data moves.
func mpiKnownMismatch(ctx context.Context, g *Group, last bool, other func() error) error {
	x := filled(tensor.Float32, 1000, g.Rank())
	for range 2 {
		if err := errors.Join(g.AllReduce(ctx, x, Sum), other()); err != nil {
			return err
		}
	}
	if last {
		return other()
	}
	return g.AllReduce(ctx, x, Sum)
}

// TestMPIMismatch: ranks whose calls differ all get a MismatchError. MPI itself would hang, or
// give wrong numbers.
func TestMPIMismatch(t *testing.T) {
	for _, m := range mpiruns(t) {
		for _, n := range []int{3, 5} {
			t.Run(fmt.Sprintf("%s/%d", m.name, n), func(t *testing.T) {
				dir := t.TempDir()
				cmd := m.command(t, n, "mpi mismatch", mpiOut+"="+dir)
				out, _ := cmd.CombinedOutput() // an MPI with operations left behind does not end well
				for r := range n {
					if text, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(r))); string(text) != "ended" {
						t.Fatalf("rank %d: %v\n%s", r, err, out)
					}
				}
			})
		}
	}
}

// mpiSignals checks that Go has its signals: one that it is told of, and one of a nil
// dereference.
func mpiSignals(ctx context.Context, g *Group) error {
	for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTERM} {
		got := make(chan os.Signal, 1)
		signal.Notify(got, s)
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			return err
		}
		<-got
		signal.Stop(got)
	}
	err := func() (err error) {
		defer func() { err, _ = recover().(error) }()
		var c *operation.Call
		c.Seq++
		return nil
	}()
	if err == nil {
		return errors.New("a nil dereference was no panic")
	}
	return g.Barrier(ctx)
}

// mpiTwice begins a second job in the process, within the first one.
func mpiTwice(ctx context.Context, g *Group) error {
	_, err := Init(ctx, WithBackend("mpi"))
	if err == nil || !strings.Contains(err.Error(), "has been initialised before") {
		return fmt.Errorf("a second Init: %v", err)
	}
	if err := g.Close(); err != nil {
		return err
	}
	_, err = Init(ctx, WithBackend("mpi"))
	if err == nil || !strings.Contains(err.Error(), "an MPI begins once in a process") {
		return fmt.Errorf("an Init after the end: %v", err)
	}
	return nil
}

// TestMPIOnce: signals are Go's, and a process has one MPI.
func TestMPIOnce(t *testing.T) {
	for _, m := range mpiruns(t) {
		for _, name := range []string{"mpi signals", "mpi twice"} {
			t.Run(m.name+"/"+name, func(t *testing.T) {
				if out, err := m.command(t, 2, name).CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

// TestMPIBadStart: what cannot work is one clear error.
func TestMPIBadStart(t *testing.T) {
	if !dlopen.Built {
		_, err := Init(t.Context(), WithBackend("mpi"))
		if err == nil || !strings.Contains(err.Error(), "not started by the launcher of an MPI") {
			t.Errorf("without mpirun: %v", err)
		}
		t.Setenv("PMI_RANK", "0")
		t.Setenv("PMI_SIZE", "1")
		_, err = Init(t.Context(), WithBackend("mpi"))
		if err == nil || !strings.Contains(err.Error(), "go build -tags mpi") {
			t.Errorf("without the tag: %v", err)
		}
		return
	}
	type bad struct {
		what string
		cmd  *exec.Cmd
		want string
	}
	alone := func(env ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(append(os.Environ(), rankMain+"=barrier", rankBackend+"=mpi"), env...)
		return cmd
	}
	cases := []bad{
		{"without mpirun", alone(), "this process was not started by the launcher of an MPI: start the program by mpirun"},
		{"by another launcher", alone("RANK=0", "WORLD_SIZE=2"), "its launcher is cohort run or torchrun"},
		{"by srun without an MPI", alone("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2"), "srun has started it without an MPI: start the program by srun --mpi=pmix for Open MPI"},
		{"no library", alone("PMI_RANK=0", "PMI_SIZE=1", "COHORT_MPI=/nowhere/libmpi.so"), "the MPI that COHORT_MPI names cannot be loaded"},
		{"no MPI", alone("PMI_RANK=0", "PMI_SIZE=1", "COHORT_MPI=libc.so.6"), "libc.so.6 is no MPI: it has no MPI_Get_library_version"},
	}
	all := mpiruns(t)
	hasOpen, hasMPICH := false, false
	for _, m := range all {
		switch {
		case m.name == "mpirun.openmpi":
			hasOpen = true
			cases = append(cases, bad{"an srun of another MPI", m.command(t, 2, "barrier", "COHORT_MPI=libmpich.so.12", "SLURM_PROCID=0"), "or to another version; start the program by srun"})
			cases = append(cases, bad{"a launcher of another MPI", m.command(t, 2, "barrier", "COHORT_MPI=libmpich.so.12"), "the launcher belongs to another MPI"})
		case m.name == "mpirun.mpich":
			hasMPICH = true
		}
	}
	if hasOpen && hasMPICH {
		cases = append(cases, bad{"two libraries", alone("PMI_RANK=0", "PMI_SIZE=1"), "there are several MPIs, libmpi.so.40 and libmpich.so.12"})
	}
	if cc, err := exec.LookPath("cc"); err == nil {
		one := playedMPI(t, cc, "one", playedWhole)
		old := playedMPI(t, cc, "old", strings.ReplaceAll(playedWhole, "F(Ialltoall)", ""))
		none := playedMPI(t, cc, "none", strings.ReplaceAll(playedWhole, "MPICH", "LAM/MPI"))
		cases = append(cases,
			bad{"one thread", alone("PMI_RANK=0", "PMI_SIZE=1", "COHORT_MPI="+one), "(MPICH Version: 0.1) gives thread level 1, and Cohort needs MPI_THREAD_MULTIPLE (3)"},
			bad{"an old MPI", alone("PMI_RANK=0", "PMI_SIZE=1", "COHORT_MPI="+old), "has no MPI_Ialltoall: it is older than MPI 3.0"},
			bad{"an unknown MPI", alone("PMI_RANK=0", "PMI_SIZE=1", "COHORT_MPI="+none), "is an MPI of no kind that is known"})
	}
	for _, c := range cases {
		t.Run(c.what, func(t *testing.T) {
			out, err := c.cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), c.want) {
				t.Errorf("%v, want %q:\n%s", err, c.want, out)
			}
		})
	}
}

// playedWhole is a library in C that has what is looked for in an MPI. It allows only the thread
// that has initialised it to call.
const playedWhole = `#include <string.h>
int MPI_Get_library_version(char *text, int *length) {
	strcpy(text, "MPICH Version: 0.1");
	*length = strlen(text);
	return 0;
}
int MPI_Init_thread(int *argc, char ***argv, int required, int *provided) { *provided = 1; return 0; }
#define F(name) int MPI_##name(void) { return 0; }
int MPI_Initialized(int *flag) { *flag = 0; return 0; }
int MPI_Finalized(int *flag) { *flag = 0; return 0; }
F(Finalize) F(Error_string) F(Abort) F(Comm_rank) F(Comm_size) F(Comm_group) F(Group_incl) F(Group_free)
F(Comm_create_group) F(Comm_free) F(Comm_set_errhandler) F(Test) F(Testsome) F(Isend) F(Irecv) F(Iprobe) F(Cancel)
F(Request_free) F(Iallreduce) F(Ibcast) F(Ireduce) F(Iallgather) F(Iallgatherv) F(Igather) F(Iscatter)
F(Ireduce_scatter_block) F(Ireduce_scatter) F(Ialltoall) F(Allreduce) F(Allgather) F(Allgatherv) F(Bcast)
F(Reduce_scatter_block)
`

// playedMPI builds a library that plays an MPI.
func playedMPI(t *testing.T, cc, name, text string) string {
	t.Helper()
	dir := t.TempDir()
	source, lib := filepath.Join(dir, name+".c"), filepath.Join(dir, name+".so")
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", lib, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return lib
}
