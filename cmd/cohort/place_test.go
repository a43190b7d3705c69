// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// placeVars are variables of schedulers that whoever runs the tests may have.
var placeVars = strings.Fields(`SLURM_JOB_ID SLURM_PROCID SLURM_NTASKS SLURM_NPROCS SLURM_STEP_ID SLURM_STEP_NUM_TASKS
SLURM_STEP_NUM_NODES SLURM_STEP_NODELIST SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
OMPI_COMM_WORLD_LOCAL_SIZE PMIX_NAMESPACE PMIX_RANK PMI_RANK PMI_SIZE MPI_LOCALNRANKS FLUX_TASK_RANK FLUX_JOB_SIZE
JOB_COMPLETION_INDEX KUBERNETES_SERVICE_HOST PBS_NODEFILE PE_HOSTFILE LSB_DJOB_HOSTFILE OAR_NODEFILE COBALT_NODEFILE
_CONDOR_PROCNO RAY_JOB_ID SYSTEMD_EXEC_PID PET_NNODES PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT COHORT_TOKEN COHORT_TOKEN_FILE`)

// TestPlace: what a scheduler says becomes the number of machines and where they meet; what
// contradicts it is an error that names both.
func TestPlace(t *testing.T) {
	const (
		slurm = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=n[07-08] SLURM_JOB_NODELIST=n[07-08] "
		ompi  = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_NAMESPACE=4711 PMIX_RANK=1 "
		pod   = "KUBERNETES_SERVICE_HOST=10.0.0.1 "
	)
	for _, c := range []struct{ name, env, flags, want, flag string }{
		{"by hand", "", "", "", "--nnodes 1:1"},
		{"srun", slurm, "", "started by Slurm: this is machine 1 of 2 by SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST; they meet at n07 port 2", "SLURM_STEP_NUM_TASKS=2"},
		{"srun on one machine", slurm + "SLURM_STEP_NUM_NODES=1", "", "they meet at 127.0.0.1 port ", ""},
		{"srun, one port", slurm, "--master-port 1234", "they meet at n07 port 1234", ""},
		{"srun, by c10d", slurm, "--rdzv-backend c10d", "started by Slurm: this is task 1, one of 2 machines by SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST", ""},
		{"srun, as before", slurm, "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint n07", "task 1, one of 2 machines", "--nnodes 2"},
		{"srun, a range", slurm, "--nnodes 1:4 --rdzv-backend c10d --rdzv-endpoint n07", "task 1, one of 1:4 machines", ""},
		{"srun, other number", slurm, "--nnodes 4 --master-addr n07", "! --nnodes 4 and SLURM_STEP_NUM_TASKS=2 contradict each other: Slurm has started 2 tasks", ""},
		{"srun, other number by a variable", slurm + "PET_NNODES=3", "", "! PET_NNODES=3 and SLURM_STEP_NUM_TASKS=2 contradict", ""},
		{"srun, other machine", slurm, "--node-rank 0", "! --node-rank 0 and SLURM_PROCID=1 contradict each other", ""},
		{"srun, alone", slurm, "--standalone", "", ""},
		{"srun, alone by a number", slurm, "--nnodes 1", "", ""},
		{"srun, a list that is none", slurm + "SLURM_STEP_NODELIST=n[07", "", `! SLURM_STEP_NODELIST: "n[07" has a bracket that does not end`, ""},
		{"batch script", "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_PROCID=0 SLURM_NTASKS=2", "", "started in a job of Slurm of 2 nodes (SLURM_JOB_NUM_NODES): this launcher uses this machine alone; for one job of all nodes: srun", "--nnodes 1:1"},
		{"batch script of one node", "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_PROCID=0 SLURM_NTASKS=2", "", "", ""},
		{"a step of one task", slurm + "SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0", "", "", ""},
		{"Open MPI here", ompi + "OMPI_COMM_WORLD_LOCAL_SIZE=2", "", "started by Open MPI: this is machine 1 of 2 by OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE; they meet at 127.0.0.1 port 2", ""},
		{"Open MPI on machines", ompi + "OMPI_COMM_WORLD_LOCAL_SIZE=1", "", "! Open MPI (OMPI_COMM_WORLD_RANK) does not say on which machine task 0 runs: give --master-addr HOST", ""},
		{"Open MPI with an address", ompi + "OMPI_COMM_WORLD_LOCAL_SIZE=1", "--master-addr n07", "started by Open MPI: this is machine 1 of 2", "OMPI_COMM_WORLD_SIZE=2"},
		{"Open MPI in Slurm", ompi + "OMPI_COMM_WORLD_LOCAL_SIZE=1 SLURM_JOB_ID=7 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=n[07-08]", "", "SLURM_JOB_NODELIST; they meet at n07 port 2", "OMPI_COMM_WORLD_SIZE=2"},
		{"MPICH here", "PMI_RANK=0 PMI_SIZE=2 MPI_LOCALNRANKS=2", "", "started by an MPI with PMI: this is machine 0 of 2 by PMI_RANK, PMI_SIZE; they meet at 127.0.0.1 port 29500", ""},
		{"Flux", "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2", "", "! Flux (FLUX_TASK_RANK) does not say", ""},
		{"Indexed Job", pod + "JOB_COMPLETION_INDEX=1", "--nnodes 2 --master-addr job-0.svc", "started by an Indexed Job of Kubernetes: this is machine 1 of 2 by JOB_COMPLETION_INDEX", ""},
		{"Indexed Job without a number", pod + "JOB_COMPLETION_INDEX=1", "", "", ""},
		{"Indexed Job without a name", pod + "JOB_COMPLETION_INDEX=5001", "--nnodes 2", "! this pod has no name that leads to the pod with index 0: make a headless service", ""},
		{"Kubeflow", pod + "JOB_COMPLETION_INDEX=1 PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=job-0.svc PET_MASTER_PORT=29500", "", "started by an Indexed Job of Kubernetes: this is machine 1 of 2", "PET_NNODES=2"},
		{"Kubeflow without an index", pod + "PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=job-0.svc", "", "started as for torchrun: PET_NNODES=2, PET_NODE_RANK=1, PET_MASTER_ADDR=job-0.svc", ""},
		{"PBS", "PBS_NODEFILE=/x", "", "started in a job of PBS whose nodes Cohort does not read (PBS_NODEFILE): this launcher uses this machine alone; for one job of all nodes: cohort run --hosts", ""},
		{"HTCondor", "_CONDOR_PROCNO=1", "", "started in a job of HTCondor whose nodes Cohort does not read", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range placeVars {
				t.Setenv(name, "")
			}
			for _, kv := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(kv, "=")
				t.Setenv(name, value)
			}
			var f runFlags
			cmd := newRunCommand()
			cmd.ResetFlags()
			f.add(cmd.Flags())
			if err := cmd.ParseFlags(strings.Fields(c.flags)); err != nil {
				t.Fatal(err)
			}
			if err := f.fromEnvironment(cmd.Flags()); err != nil {
				t.Fatal(err)
			}
			line, err := f.fromPlace(cmd.Flags())
			bad, refused := strings.CutPrefix(c.want, "! ")
			switch {
			case refused && (err == nil || !strings.Contains(err.Error(), bad)):
				t.Errorf("%q, %v; want an error with %q", line, err, bad)
			case !refused && (err != nil || !strings.Contains(line, c.want) || c.want == "" && line != ""):
				t.Errorf("%q, %v; want %q", line, err, c.want)
			case c.flag != "" && f.given("nnodes") != c.flag:
				t.Errorf("the number of machines is %q, want %q", f.given("nnodes"), c.flag)
			}
		})
	}
	port := func(id string) int {
		for _, name := range placeVars {
			t.Setenv(name, "")
		}
		for _, kv := range strings.Fields(slurm + "SLURM_JOB_ID=" + id) {
			name, value, _ := strings.Cut(kv, "=")
			t.Setenv(name, value)
		}
		p, _ := envvar.FindPlace()
		return p.Port
	}
	if first, other, again := port("7"), port("8"), port("7"); first == other || first != again || first < 1024 {
		t.Errorf("ports %d, %d and %d", first, other, again)
	}
}

func TestFirstPod(t *testing.T) {
	hosts := "127.0.0.1 localhost\n10.0.0.3\tjob-12.sub.ns.svc.cluster.local\tjob-12 # us\n"
	for _, c := range []struct {
		host  string
		index int
		want  string
	}{
		{"job-12", 12, "job-0.sub.ns.svc.cluster.local"},
		{"job-12", 2, ""},
		{"job-13", 13, ""},
	} {
		if got, ok := firstPodOf(c.host, hosts, c.index); got != c.want || ok != (c.want != "") {
			t.Errorf("%s, %d: %q, %v; want %q", c.host, c.index, got, ok, c.want)
		}
	}
}
