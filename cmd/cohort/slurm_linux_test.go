// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/internal/transport"
)

var withSlurm = flag.Bool("slurm", false, "play jobs on a Slurm of two nodes that the test starts (TestSlurm; a minute and root)")

// slurm is a cluster of two nodes, n1 and n2, on this machine.
type slurm struct {
	t    *testing.T
	dir  string
	main *exec.Cmd // has a mount namespace of its own
}

// slurmMain starts the daemons. The names of the nodes are in a hosts file that only this
// namespace sees. It ends when its standard input does.
const slurmMain = `D=$1; H=$(hostname)
{ cat /etc/hosts; echo "127.0.0.1 n1 n2 $H"; } >$D/hosts; mount --bind $D/hosts /etc/hosts
munged --force --key-file=$D/key --socket=$D/munge.sock --pid-file=$D/munged.pid --log-file=$D/munged.log --seed-file=$D/seed || exit 1
cat >$D/slurm.conf <<X
ClusterName=cohort
SlurmctldHost=$H(127.0.0.1)
SlurmctldPort=$2
AuthType=auth/munge
AuthInfo=socket=$D/munge.sock
SlurmUser=root
StateSaveLocation=$D/state
SlurmdSpoolDir=$D/spool-%n
SlurmctldPidFile=$D/ctld.pid
SlurmdPidFile=$D/slurmd-%n.pid
SlurmctldLogFile=$D/ctld.log
SlurmdLogFile=$D/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
MpiDefault=none
JobRequeue=1
KillWait=10
NodeName=n1 NodeHostname=$H NodeAddr=127.0.0.1 Port=$3 CPUs=1
NodeName=n2 NodeHostname=$H NodeAddr=127.0.0.1 Port=$4 CPUs=1
PartitionName=p Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
X
export SLURM_CONF=$D/slurm.conf
slurmctld -c -D & P=$!
slurmd -D -N n1 & P="$P $!"
slurmd -D -N n2 & P="$P $!"
echo $$ >$D/main.pid
cat >/dev/null
kill $P; wait
# munged is no child of this shell, and writes its seed when it ends.
M=$(cat $D/munged.pid); kill $M
while kill -0 $M 2>/dev/null; do sleep 0.1; done`

// startSlurm skips the test where there is no Slurm.
func startSlurm(t *testing.T) *slurm {
	if os.Getuid() != 0 {
		t.Skip("the daemons of Slurm need root")
	}
	for _, name := range []string{"slurmctld", "slurmd", "munged", "sbatch", "unshare", "nsenter"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("there is no %s (Debian: slurm-wlm, munge)", name)
		}
	}
	s := &slurm{t: t, dir: t.TempDir()}
	for _, d := range []string{"state", "spool-n1", "spool-n2"} {
		if err := os.Mkdir(filepath.Join(s.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(s.dir, "key"), []byte(transport.NewToken().Text()), 0o400); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(s.dir, 0o755); err != nil { // munged is careful
		t.Fatal(err)
	}
	args := []string{"-m", "sh", "-c", slurmMain, "sh", s.dir}
	for range 3 {
		args = append(args, regexp.MustCompile(`\d+$`).FindString(freeEndpoint(t)))
	}
	s.main = exec.Command("unshare", args...)
	in, err := s.main.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	logs, err := os.Create(filepath.Join(s.dir, "main.log"))
	if err != nil {
		t.Fatal(err)
	}
	s.main.Stdout, s.main.Stderr = logs, logs
	s.main.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.main.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			if jobs, err := s.try("squeue", "-h"); err != nil || strings.TrimSpace(jobs) == "" {
				break // daemons that end beside a job wait for it
			}
		}
		in.Close()
		late := time.AfterFunc(20*time.Second, func() { _ = syscall.Kill(-s.main.Process.Pid, syscall.SIGKILL) })
		_ = s.main.Wait()
		if !late.Stop() {
			t.Error("the daemons of Slurm did not end in 20 s")
		}
		logs.Close()
	})
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if out, err := s.try("sinfo", "-h", "-o", "%D %t"); err == nil && strings.Contains(out, "2 idle") {
			return s
		} else if time.Now().After(deadline) {
			text, _ := os.ReadFile(logs.Name())
			t.Fatalf("Slurm does not come: %s\n%s", out, text)
		}
	}
}

// try runs a command where the cluster is.
func (s *slurm) try(args ...string) (string, error) {
	pid, err := os.ReadFile(filepath.Join(s.dir, "main.pid"))
	if err != nil {
		return "", err
	}
	cmd := exec.Command("nsenter", append([]string{"-m", "-t", strings.TrimSpace(string(pid)), "--wd=" + s.dir, "env", "SLURM_CONF=" + s.dir + "/slurm.conf", cliMain + "=1"}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *slurm) do(args ...string) string {
	s.t.Helper()
	out, err := s.try(args...)
	if err != nil {
		s.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// submit submits a script, and returns the number of the job and the file of its output.
func (s *slurm) submit(script string, flags ...string) (id, out string) {
	s.t.Helper()
	path := filepath.Join(s.dir, "job.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		s.t.Fatal(err)
	}
	id = strings.TrimSpace(s.do(append(append([]string{"sbatch", "--parsable", "--open-mode=append", "-o", s.dir + "/job-%j.out"}, flags...), path)...))
	return id, filepath.Join(s.dir, "job-"+id+".out")
}

// until waits for a text in the output of a job, and returns the output.
func (s *slurm) until(path, want string) string {
	s.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		text, _ := os.ReadFile(path)
		if strings.Contains(string(text), want) {
			return string(text)
		}
		if time.Now().After(deadline) {
			state, _ := s.try("squeue")
			s.t.Fatalf("no %q in the output of the job:\n%s\n%s", want, text, state)
		}
	}
}

// TestSlurm: on a real Slurm of two nodes, the same command trains in a step, saves when the
// time of the job ends, goes on when the job is requeued, and runs in a heterogeneous step.
func TestSlurm(t *testing.T) {
	if !*withSlurm {
		t.Skip("go test ./cmd/cohort -run TestSlurm -slurm -v, as root")
	}
	s := startSlurm(t)
	out := filepath.Join(s.dir, "run")
	const steps = 600
	e := &elasticJob{text: writeText(t)}
	train := strings.Join(e.command(out, steps), " ")
	run := os.Args[0] + " run --shutdown-timeout 8 "
	script := fmt.Sprintf(`export COHORT_TOKEN=$(%[1]s token)
echo "start ${SLURM_RESTART_COUNT:-0}"
srun --ntasks-per-node=1 %[2]s %[1]s %[3]s
echo "result $?"
[ -e %[4]s ] || scontrol requeue $SLURM_JOB_ID
echo "over ${SLURM_RESTART_COUNT:-0}"
`, os.Args[0], run, train, checkpoint.Path(out, steps))
	id, path := s.submit(script, "-N2", "--requeue")
	text := s.until(path, `"loss"`)
	for _, want := range []string{"machine 0 of 2 by SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST; they meet at n1 port ", "machine 1 of 2"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	s.do("scancel", "--signal=TERM", id) // as --signal=TERM@60 does
	s.until(path, "result ")
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if state, _ := s.try("squeue", "-h", "-j", id, "-o", "%T"); strings.Contains(state, "PENDING") {
			break
		}
	}
	// Slurm waits two minutes before a requeued job begins again.
	if out, err := s.try("scontrol", "update", "jobid="+id, "starttime=now"); err != nil {
		t.Logf("scontrol update: %s", out)
	}
	text = s.until(path, "over 1")
	if !strings.Contains(text, "start 1") || !strings.Contains(text, "result 0") || !strings.Contains(text, "of 2, with ranks ") {
		t.Errorf("the job was not started again, or did not end well:\n%s", text)
	}
	report, err := data.CheckOrder(filepath.Join(out, "order"), data.CheckOptions{Steps: steps})
	if err == nil {
		err = report.Err()
	}
	if err != nil || report.Steps != steps || len(report.Attempts) != 2 {
		t.Errorf("the order of samples: %v\n%v", err, report)
	}

	id, path = s.submit(fmt.Sprintf("export COHORT_TOKEN=$(%[1]s token)\nsrun -N1 %[2]s --nproc-per-node 1 sh -c 'echo rank $RANK of $WORLD_SIZE' : -N1 %[2]s --nproc-per-node 2 sh -c 'echo rank $RANK of $WORLD_SIZE'\necho result $?\n", os.Args[0], run), "-N2")
	text = s.until(path, "result ")
	for _, want := range []string{"rank 0 of 3", "rank 1 of 3", "rank 2 of 3", "result 0"} {
		if !strings.Contains(text, want) {
			t.Errorf("a heterogeneous step (job %s): no %q in\n%s", id, want, text)
		}
	}

	_, path = s.submit(fmt.Sprintf("%[2]s true\nsrun --ntasks-per-node=1 %[2]s true\necho result $?\n", os.Args[0], run), "-N2")
	text = s.until(path, "result ")
	for _, want := range []string{"started in a job of Slurm of 2 nodes (SLURM_JOB_NUM_NODES)", "SLURM_STEP_NUM_TASKS=2: the machines of a job prove", "export COHORT_TOKEN=$(cohort token)", "result 2"} {
		if !strings.Contains(text, want) {
			t.Errorf("without a token: no %q in\n%s", want, text)
		}
	}

	// Both nodes of this cluster are this machine, and so are their names, which doctor says.
	_, path = s.submit(os.Args[0]+" doctor --allocation --problems --port 0\necho result $?\n", "-N2")
	text = s.until(path, "result ")
	for _, want := range []string{"problem: hosts: n1, n2", "are the same host", "2 hosts: ", "result 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("doctor in a job: no %q in\n%s", want, text)
		}
	}
}
