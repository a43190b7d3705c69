// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// guardScript ends a job whose agent has been killed. The shell waits for the end of a pipe
// whose other end only the agent holds, and then kills and removes. The lines that it reads
// say:
//
//   - which process groups have started (+) and ended (-): once a group has ended, its
//     number may belong to another one, and must not be killed;
//   - which cgroup (c) and which directories (d) the agent is about to make.
//
// On Linux the shell also kills every process in the job's cgroup, and every process that
// has the job's id in its environment, so that it gets the daemons of workers too. It looks
// for these several times, because a process may start another one meanwhile. The
// environment of the guard itself has no job id.
const guardScript = `
job=$1 cgroup= groups=
shift
while IFS= read -r line; do
	arg=${line#??}
	case $line in
	+*) groups="$groups $arg " ;;
	-*) groups="${groups%% $arg *} ${groups#* $arg }" ;;
	c*) cgroup=$arg ;;
	d*) set -- "$@" "$arg" ;;
	esac
done
for g in $groups; do kill -KILL -"$g"; done
[ "$cgroup" ] && echo 1 >"$cgroup/cgroup.kill"
for pass in 1 2 3 4 5; do
	found=
	for f in $(grep -lsF "$job" /proc/[0-9]*/environ); do
		p=${f#/proc/}; kill -KILL "${p%/environ}" && found=1
	done
	[ "$found" ] || break
done
if [ "$cgroup" ]; then
	for pass in 1 2 3 4 5; do
		find "$cgroup" -depth -type d -exec rmdir {} \;
		[ -d "$cgroup" ] || break
		sleep 0.05 || sleep 1
	done
fi
[ "$1" ] || exit
# A process that has just been killed may write one more file.
rm -rf -- "$@" || { sleep 1; rm -rf -- "$@"; }
`

// guard is the running shell. On Linux the kernel kills the workers with their agent, and
// the guard kills the processes that workers have started. On other systems the guard kills
// both. There is no guard on a machine without /bin/sh.
type guard struct {
	w    *os.File
	proc *os.Process
}

// startGuard starts the shell, before anything exists that the shell would remove: the agent
// may be killed at any time. A nil guard does nothing.
func startGuard(job string) *guard {
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	defer r.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		w.Close()
		return nil
	}
	defer null.Close()
	argv := []string{"cohort-guard", "-c", guardScript, "cohort-guard", envvar.Job.Assign(job)}
	proc, err := os.StartProcess("/bin/sh", argv, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin"},
		Files: []*os.File{r, null, null},
		Sys:   &syscall.SysProcAttr{Setsid: true}, // a Ctrl-C must reach the agent alone
	})
	if err != nil {
		w.Close()
		return nil
	}
	return &guard{w: w, proc: proc}
}

// watch tells the guard that a process group has started or ended.
func (g *guard) watch(pid int, alive bool) {
	op := '-'
	if alive {
		op = '+'
	}
	g.tell(op, strconv.Itoa(pid))
}

// tell writes a line to the guard.
func (g *guard) tell(op rune, text string) {
	if g != nil && !strings.Contains(text, "\n") {
		_, _ = g.w.WriteString(string(op) + " " + text + "\n")
	}
}

// tempDir makes a directory, which the guard removes if the agent is killed.
func (g *guard) tempDir() (string, error) {
	dir := filepath.Join(os.TempDir(), "cohort-run-"+randomHex(8))
	g.tell('d', dir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	return dir, nil
}

// stop ends the guard. The agent has ended everything itself.
func (g *guard) stop() {
	if g == nil {
		return
	}
	_ = g.proc.Kill()
	_, _ = g.proc.Wait()
	_ = g.w.Close()
}
