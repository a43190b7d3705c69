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

// guardScript is what remains when the agent has been killed so that it could
// not end anything itself: a shell that waits for the end of a pipe whose other
// end only the agent holds, and then kills and removes. The lines that it reads say
// which process groups have come (+) and gone (-), for a number is not killed after it may
// have passed to somebody else; which cgroup (c) and which directories (d) are about to
// be made. On Linux, it goes on to kill every process
// in the job's cgroup, if it has one, and every process
// that has the job in its environment (in passes, because a process may start
// another one meanwhile), so that a daemon of a worker goes too. The
// environment of the guard itself does not name the job.
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
# What has just been killed may write one file more.
rm -rf -- "$@" || { sleep 1; rm -rf -- "$@"; }
`

// guard is the running shell. The kernel kills the workers themselves with
// their agent (Linux); the guard is for processes below them, and for systems
// without that. A machine without /bin/sh has to do without it.
type guard struct {
	w    *os.File
	proc *os.Process
}

// startGuard starts the shell, which comes before all that it removes: an agent may be
// killed at any time. A nil guard does nothing.
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
		Sys:   &syscall.SysProcAttr{Setsid: true}, // a Ctrl-C is for the agent
	})
	if err != nil {
		w.Close()
		return nil
	}
	return &guard{w: w, proc: proc}
}

// watch tells the guard that a worker's process group has come or gone.
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

// tempDir makes a directory that goes with the job.
func (g *guard) tempDir() (string, error) {
	dir := filepath.Join(os.TempDir(), "cohort-run-"+randomHex(8))
	g.tell('d', dir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	return dir, nil
}

// stop ends the guard: everything has been ended in order.
func (g *guard) stop() {
	if g == nil {
		return
	}
	_ = g.proc.Kill()
	_, _ = g.proc.Wait()
	_ = g.w.Close()
}
