// SPDX-License-Identifier: Apache-2.0

package envvar

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// Task is the place of this process in a job of a scheduler, or of another launcher such as
// mpirun. Cohort does not use it: its ranks have their place in RANK and WORLD_SIZE.
type Task struct {
	Rank, Size       int // Size is 0 if it is not known
	RankVar, SizeVar string
}

// tasks are the variables that hold such a place: of implementations of MPI, of vendors'
// launchers, and of schedulers. The innermost launcher comes first. The last ones have no
// size.
var tasks = []struct{ rank, size string }{
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
	{"PMI_RANK", "PMI_SIZE"},
	{"PALS_RANKID", "PALS_SIZE"},
	{"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
	{"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
	{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
	{"SLURM_PROCID", "SLURM_NTASKS"},
	{"SLURM_PROCID", "SLURM_NPROCS"},
	{"AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"},
	{"PMIX_RANK", ""},
	{"ALPS_APP_PE", ""},
	{"JOB_COMPLETION_INDEX", ""},
	{"VC_TASK_INDEX", ""},
	{"LSF_PM_TASKID", ""},
	{"LSB_JOBINDEX", ""},
}

// FindTask returns the task of this process, if it is one of several.
func FindTask() (t Task, ok bool) {
	for _, v := range tasks {
		rank, err := ParseInt(os.Getenv(v.rank))
		if err != nil || rank < 0 {
			continue
		}
		if v.size == "" {
			// Outside of an array of jobs, the index is 0.
			if v.rank == "LSB_JOBINDEX" && rank == 0 {
				continue
			}
			return Task{Rank: rank, RankVar: v.rank}, true
		}
		if size, err := ParseInt(os.Getenv(v.size)); err == nil && size > rank {
			return Task{Rank: rank, Size: size, RankVar: v.rank, SizeVar: v.size}, size > 1
		}
	}
	return Task{}, false
}

// MPITask returns the place that the launcher of an MPI has given this process, also if it is
// the only one. Launchers of jobs whose tasks are no ranks of an MPI are left out.
func MPITask() (t Task, ok bool) {
	for _, v := range tasks {
		switch v.rank {
		case "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK", "FLUX_TASK_RANK", "PMIX_RANK":
		default:
			continue
		}
		rank, err := ParseInt(os.Getenv(v.rank))
		if err != nil || rank < 0 {
			continue
		}
		t = Task{Rank: rank, RankVar: v.rank}
		sizes := []string{v.size}
		if v.size == "" { // srun --mpi=pmix has it elsewhere
			sizes = []string{"SLURM_STEP_NUM_TASKS"}
		}
		for _, name := range sizes {
			if size, err := ParseInt(os.Getenv(name)); err == nil && size > rank {
				t.Size, t.SizeVar = size, name
			}
		}
		return t, true
	}
	return Task{}, false
}

// UnderSlurm reports whether srun has started this process.
func UnderSlurm() bool { return os.Getenv("SLURM_PROCID") != "" }

var toldTask sync.Once

// TellTask writes a line if this process is one of several tasks: Cohort does not use that.
// It writes the line only once in a process.
func TellTask(w io.Writer) {
	if t, ok := FindTask(); ok {
		toldTask.Do(func() { fmt.Fprintf(w, "cohort: %s\n", t.Alone()) })
	}
}

// Alone says that the process runs alone, and how to start one job of all tasks.
func (t Task) Alone() string {
	where := fmt.Sprintf("this is task %d of several by %s", t.Rank, t.RankVar)
	if t.Size > 0 {
		where = fmt.Sprintf("this is task %d of %d by %s and %s", t.Rank, t.Size, t.RankVar, t.SizeVar)
	}
	start := "one launcher on each machine"
	if strings.HasPrefix(t.RankVar, "SLURM") {
		start += " (srun --ntasks-per-node=1)"
	}
	return fmt.Sprintf("%s, which Cohort does not use: each of them runs alone. For one job of all, start %s, as in cohort run --nnodes N --rdzv-backend c10d --rdzv-endpoint HOST PROGRAM, or give each task %s, %s, %s, %s and the same %s",
		where, start, Rank, WorldSize, MasterAddr, MasterPort, Token)
}
