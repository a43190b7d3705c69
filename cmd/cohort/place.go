// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/launch/rendezvous"
	"github.com/cohort-ml/cohort/launch/ssh"
)

// fromPlace lets a scheduler, or the launcher of an MPI, say which machine of the job this
// process is: each of its tasks is a launcher. Flags of the user that say something else are
// an error. The line says what was found, and from where; it is empty if nothing was.
func (f *runFlags) fromPlace(set *pflag.FlagSet) (line string, err error) {
	if f.standalone || f.has("nnodes") && f.numNodes == "1" {
		return "", nil
	}
	p, ok := envvar.FindPlace()
	switch {
	case !ok:
		return f.alonePlace(), nil
	case p.Task.Size == 0 && !f.has("nnodes"): // launch says that each task is alone
		return "", nil
	case p.Task.Size > rendezvous.MaxNodes:
		return "", fmt.Errorf("%s=%d: at most %d machines", p.Task.SizeVar, p.Task.Size, rendezvous.MaxNodes)
	}
	f.placed = map[string]string{}
	said := []string{p.Task.RankVar}
	if p.Task.Size > 0 {
		said = append(said, p.Task.SizeVar)
	}
	if err := f.placeNodes(set, &p); err != nil {
		return "", err
	}
	if f.backend != "static" {
		if f.backend == "c10d" && !f.has("rdzv-endpoint") {
			addr, from, err := firstHost(&p)
			if err != nil {
				return "", fmt.Errorf("%w: give --rdzv-endpoint HOST", err)
			}
			if from != "" {
				said = append(said, from)
			}
			f.endpoint = addr
		}
		return f.placeLine(&p, said, ""), nil
	}
	if f.has("rdzv-endpoint") || f.has("master-addr") {
		return f.placeLine(&p, said, ""), nil
	}
	addr, from, err := firstHost(&p)
	if err != nil {
		return "", fmt.Errorf("%w: give --master-addr HOST, where task 0 runs", err)
	}
	if from != "" {
		said = append(said, from)
	}
	if err := f.place(set, "master-addr", addr, from+"="+addr); err != nil {
		return "", err
	}
	if !f.has("master-port") && p.Port != 0 {
		if err := f.place(set, "master-port", strconv.Itoa(p.Port), fmt.Sprintf("the port %d of this job", p.Port)); err != nil {
			return "", err
		}
	}
	port := rendezvous.StaticPort
	if f.masterPort != 0 {
		port = int(f.masterPort)
	}
	return f.placeLine(&p, said, fmt.Sprintf("; they meet at %s port %d", addr, port)), nil
}

// place sets a flag to what a scheduler says.
func (f *runFlags) place(set *pflag.FlagSet, name, value, said string) error {
	f.placed[name] = said
	return set.Set(name, value)
}

// placeNodes sets the number of machines and the one of this machine, or compares them with
// what the user says.
func (f *runFlags) placeNodes(set *pflag.FlagSet, p *envvar.Place) error {
	t := &p.Task
	rank, size := fmt.Sprintf("%s=%d", t.RankVar, t.Rank), fmt.Sprintf("%s=%d", t.SizeVar, t.Size)
	if !f.has("nnodes") {
		if err := f.place(set, "nnodes", strconv.Itoa(t.Size), size); err != nil {
			return err
		}
	} else if t.Size > 0 {
		least, most, err := parseNodes(f.numNodes)
		if err != nil {
			return fmt.Errorf("%s: %w", f.given("nnodes"), err)
		}
		if t.Size < least || t.Size > most {
			return fmt.Errorf("%s and %s contradict each other: %s has started %d tasks, and each is a machine of the job; leave the number of machines out, or start as many tasks (srun --ntasks-per-node=1, mpirun -npernode 1)", f.given("nnodes"), size, p.Scheduler, t.Size)
		}
	}
	switch {
	case f.backend != "static":
		return nil
	case !f.has("node-rank"):
		return f.place(set, "node-rank", strconv.Itoa(t.Rank), rank)
	case int(f.nodeRank) != t.Rank && t.RankVar != "JOB_COMPLETION_INDEX": // the index within one of several jobs
		return fmt.Errorf("%s and %s contradict each other: leave the number of this machine out, and %s says it", f.given("node-rank"), rank, p.Scheduler)
	}
	return nil
}

// firstHost returns the name or address of the machine of task 0, and the variable that says
// it.
func firstHost(p *envvar.Place) (addr, from string, err error) {
	switch {
	case p.Here:
		return "127.0.0.1", "", nil
	case p.Hosts != "":
		names, err := ssh.Expand(p.Hosts)
		if err != nil {
			return "", "", fmt.Errorf("%s: %w", p.HostsVar, err)
		}
		return names[0], p.HostsVar, nil
	case p.Task.RankVar == "JOB_COMPLETION_INDEX":
		if name, ok := firstPod(p.Task.Rank); ok {
			return name, "the name of this pod", nil
		}
		return "", "", fmt.Errorf("this pod has no name that leads to the pod with index 0: make a headless service and name it in the pod's subdomain")
	}
	return "", "", fmt.Errorf("%s (%s) does not say on which machine task 0 runs", p.Scheduler, p.Task.RankVar)
}

// firstPod returns the name of the pod with index 0. The pods of an Indexed Job are called
// JOB-INDEX; /etc/hosts has the whole name with the headless service.
func firstPod(index int) (string, bool) {
	host, err := os.Hostname()
	if err != nil {
		return "", false
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		return "", false
	}
	return firstPodOf(host, string(hosts), index)
}

func firstPodOf(host, hosts string, index int) (string, bool) {
	job, ok := strings.CutSuffix(host, "-"+strconv.Itoa(index))
	if !ok {
		return "", false
	}
	for line := range strings.SplitSeq(hosts, "\n") {
		text, _, _ := strings.Cut(line, "#")
		for _, name := range strings.Fields(text) {
			if domain, ok := strings.CutPrefix(name, host+"."); ok {
				return job + "-0." + domain, true
			}
		}
	}
	return "", false
}

// placeLine says where this process is, and which variables say it.
func (f *runFlags) placeLine(p *envvar.Place, said []string, meet string) string {
	number := fmt.Sprintf("machine %d of %s", p.Task.Rank, f.numNodes)
	if f.backend != "static" {
		number = fmt.Sprintf("task %d, one of %s machines", p.Task.Rank, f.numNodes)
	} else if f.has("node-rank") {
		number = fmt.Sprintf("machine %d of %s", f.nodeRank, f.numNodes)
	}
	where := ""
	if p.Pod && p.Task.RankVar != "JOB_COMPLETION_INDEX" {
		where = ", in a pod of Kubernetes"
	}
	return fmt.Sprintf("started by %s%s: this is %s by %s%s", p.Scheduler, where, number, strings.Join(said, ", "), meet)
}

// alonePlace says what a process that a scheduler has started alone should know.
func (f *runFlags) alonePlace() string {
	if a, ok := envvar.FindAllocation(); ok && !f.has("nnodes") {
		what := "whose nodes Cohort does not read"
		if a.Nodes > 0 {
			what = fmt.Sprintf("of %d nodes", a.Nodes)
		}
		return fmt.Sprintf("started in a job of %s %s (%s): this launcher uses this machine alone; for one job of all nodes: %s", a.Scheduler, what, a.Var, a.Start)
	}
	if len(f.pet) > 0 && f.pet["nnodes"] {
		return fmt.Sprintf("started as for torchrun: %s (Kubeflow and others set such variables)", strings.Join(f.anyOf("nnodes", "node-rank", "master-addr", "rdzv-endpoint"), ", "))
	}
	if envvar.SystemdPID() == os.Getpid() {
		return "started by systemd" + unitName() + " (SYSTEMD_EXEC_PID)"
	}
	return ""
}

// unitName is the unit of this process by its cgroup.
func unitName() string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		for part := range strings.SplitSeq(line, "/") {
			if strings.HasSuffix(part, ".service") && !strings.HasPrefix(part, "user@") {
				return " as " + strconv.Quote(part)
			}
		}
	}
	return ""
}
