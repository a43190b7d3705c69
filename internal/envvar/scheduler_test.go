// SPDX-License-Identifier: Apache-2.0

package envvar

import (
	"strings"
	"testing"
)

// clearTasks unsets what a test may have got from whoever runs it.
func clearTasks(t *testing.T) {
	for _, v := range tasks {
		for _, name := range []string{v.rank, v.size} {
			if name != "" {
				t.Setenv(name, "")
			}
		}
	}
}

func TestFindTask(t *testing.T) {
	for env, want := range map[string]string{
		"":                              "",
		"SLURM_PROCID=1 SLURM_NTASKS=4": "task 1 of 4 by SLURM_PROCID and SLURM_NTASKS",
		"SLURM_PROCID=0 SLURM_NTASKS=4": "task 0 of 4",
		"SLURM_PROCID=0 SLURM_NPROCS=2": "by SLURM_PROCID and SLURM_NPROCS",
		"SLURM_PROCID=0 SLURM_NTASKS=1": "",
		"SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1": "", // a step of one task within a larger job
		"SLURM_NTASKS=4": "", // in the shell of salloc
		"SLURM_ARRAY_TASK_ID=3 SLURM_PROCID=0 SLURM_NTASKS=1":                         "", // a job of its own
		"OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 PMIX_RANK=3":                   "task 3 of 8 by OMPI_COMM_WORLD_RANK",
		"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0":                   "",
		"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 SLURM_PROCID=0 SLURM_NTASKS=4": "",
		"PMI_RANK=1 PMI_SIZE=2":            "task 1 of 2 by PMI_RANK",
		"PMIX_RANK=2":                      "task 2 of several by PMIX_RANK",
		"FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2": "FLUX_TASK_RANK",
		"JOB_COMPLETION_INDEX=0":           "task 0 of several by JOB_COMPLETION_INDEX",
		"ALPS_APP_PE=5":                    "ALPS_APP_PE",
		"LSB_JOBINDEX=0":                   "",
		"LSB_JOBINDEX=2":                   "LSB_JOBINDEX",
		"AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_NUM_NODES=2": "AWS_BATCH_JOB_NODE_INDEX",
		"SLURM_PROCID=x SLURM_NTASKS=4":                        "",
		"SLURM_PROCID=4 SLURM_NTASKS=4":                        "",
		"SLURM_PROCID=1 SLURM_NTASKS=2(x2)":                    "",
	} {
		t.Run(env, func(t *testing.T) {
			clearTasks(t)
			for _, kv := range strings.Fields(env) {
				k, v, _ := strings.Cut(kv, "=")
				t.Setenv(k, v)
			}
			task, ok := FindTask()
			if ok != (want != "") || ok && !strings.Contains(task.Alone(), want) {
				t.Errorf("%v, %s", ok, task.Alone())
			}
		})
	}
}
