// SPDX-License-Identifier: Apache-2.0

package envvar

import (
	"hash/fnv"
	"os"
	"strconv"
)

// Place is what a scheduler, or another launcher, says of this process, if each of its tasks
// is a launcher of a machine.
type Place struct {
	// Scheduler is the name of who has started this process.
	Scheduler string
	Task      Task
	// Hosts is a list of hosts as Slurm writes it, whose first has task 0. HostsVar is its
	// variable. Both are empty if the scheduler does not say it.
	Hosts, HostsVar string
	// Here says that all tasks are on this machine.
	Here bool
	// Port is the same for all tasks of this job, and another one for other jobs; 0 if
	// nothing tells the jobs apart.
	Port int
	// Pod says that this is a pod of Kubernetes.
	Pod bool
}

// schedulers are the names of who sets the variables of tasks.
var schedulers = map[string]string{
	"OMPI_COMM_WORLD_RANK": "Open MPI", "MV2_COMM_WORLD_RANK": "MVAPICH", "PMI_RANK": "an MPI with PMI",
	"PALS_RANKID": "PALS", "JSM_NAMESPACE_RANK": "JSM", "FLUX_TASK_RANK": "Flux", "SLURM_PROCID": "Slurm",
	"AWS_BATCH_JOB_NODE_INDEX": "AWS Batch", "PMIX_RANK": "an MPI with PMIx", "ALPS_APP_PE": "ALPS",
	"JOB_COMPLETION_INDEX": "an Indexed Job of Kubernetes", "VC_TASK_INDEX": "Volcano",
	"LSF_PM_TASKID": "LSF", "LSB_JOBINDEX": "LSF",
}

// FindPlace returns the place of this process, if it is one of several tasks. The script of a
// batch job of Slurm is none, although it has variables of a task.
func FindPlace() (p Place, ok bool) {
	if p.Task, ok = FindTask(); !ok {
		return p, false
	}
	p.Scheduler, p.Pod = schedulers[p.Task.RankVar], os.Getenv("KUBERNETES_SERVICE_HOST") != ""
	key := ""
	switch p.Task.RankVar {
	case "SLURM_PROCID":
		if os.Getenv("SLURM_STEP_ID") == "" {
			return p, false
		}
		p.slurmHosts("SLURM_STEP_NODELIST")
		key = os.Getenv("SLURM_JOB_ID") + "." + os.Getenv("SLURM_STEP_ID")
		p.Here = os.Getenv("SLURM_STEP_NUM_NODES") == "1"
	case "OMPI_COMM_WORLD_RANK":
		p.Here = same("OMPI_COMM_WORLD_LOCAL_SIZE", p.Task.Size)
		key = os.Getenv("PMIX_NAMESPACE")
	case "PMI_RANK":
		p.Here = same("MPI_LOCALNRANKS", p.Task.Size)
	}
	if p.Hosts == "" && !p.Here { // mpirun within a job of Slurm begins on its first node
		p.slurmHosts("SLURM_JOB_NODELIST")
	}
	if key != "" {
		h := fnv.New32a()
		_, _ = h.Write([]byte(key)) // never fails
		p.Port = 18000 + int(h.Sum32()%10000)
	}
	return p, true
}

// slurmHosts sets the list of hosts to that of a variable. A step of several components (a
// heterogeneous job) has one list and one count of tasks.
func (p *Place) slurmHosts(name string) {
	if hosts := os.Getenv(name); hosts != "" {
		p.Hosts, p.HostsVar = hosts, name
	}
}

// same reports whether a variable is a number.
func same(name string, n int) bool { return os.Getenv(name) == strconv.Itoa(n) }

// Allocation is a part of a cluster that a batch job has, and that one process does not use
// by itself.
type Allocation struct {
	Scheduler, Var string
	// Nodes is the number of nodes, 0 if it is not known.
	Nodes int
	// Start is what starts a launcher on each node.
	Start string
	// Hosts is a list of the nodes as Slurm writes it, and Via the command that runs another
	// one on a node; both are empty if the scheduler does not say it.
	Hosts, Via string
}

// FindAllocation returns the allocation in which this process runs, if it has more than one
// node, or may have.
func FindAllocation() (a Allocation, ok bool) {
	switch {
	case os.Getenv("SLURM_JOB_ID") != "":
		n, err := ParseInt(os.Getenv("SLURM_JOB_NUM_NODES"))
		return Allocation{Scheduler: "Slurm", Var: "SLURM_JOB_NUM_NODES", Nodes: n, Start: "srun --ntasks-per-node=1 cohort run …",
			Hosts: os.Getenv("SLURM_JOB_NODELIST"), Via: "srun -N1 -n1 --overlap -w"}, err == nil && n > 1 && os.Getenv("SLURM_STEP_ID") == ""
	case os.Getenv("PBS_NODEFILE") != "":
		return Allocation{Scheduler: "PBS", Var: "PBS_NODEFILE", Start: `cohort run --hosts "$(sort -u $PBS_NODEFILE | paste -sd,)" …`}, true
	case os.Getenv("PE_HOSTFILE") != "":
		return Allocation{Scheduler: "Grid Engine", Var: "PE_HOSTFILE", Start: `cohort run --hosts "$(cut -d' ' -f1 $PE_HOSTFILE | sort -u | paste -sd,)" …`}, true
	case os.Getenv("LSB_DJOB_HOSTFILE") != "":
		return Allocation{Scheduler: "LSF", Var: "LSB_DJOB_HOSTFILE", Start: `cohort run --hosts "$(sort -u $LSB_DJOB_HOSTFILE | paste -sd,)" …`}, true
	}
	for _, v := range []struct{ scheduler, name string }{
		{"OAR", "OAR_NODEFILE"}, {"Cobalt", "COBALT_NODEFILE"}, {"HTCondor", "_CONDOR_PROCNO"}, {"Ray", "RAY_JOB_ID"},
	} {
		if os.Getenv(v.name) != "" {
			return Allocation{Scheduler: v.scheduler, Var: v.name, Start: "cohort run --hosts a,b:4 …"}, true
		}
	}
	return Allocation{}, false
}

// SystemdPID is the process that systemd has started, by SYSTEMD_EXEC_PID; 0 if it is none.
func SystemdPID() int {
	n, err := ParseInt(os.Getenv("SYSTEMD_EXEC_PID"))
	if err != nil {
		return 0
	}
	return n
}
