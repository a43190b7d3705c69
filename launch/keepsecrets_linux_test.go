// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func init() { roles["dump"] = roleDump }

// roleDump says whether the system may dump this process; with an argument it
// keeps its secrets first, and asks a child too.
func roleDump(arg string) int {
	if arg != "" {
		KeepSecrets()
	}
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		say("%v", err)
		return 1
	}
	say("dumpable %d", dumpable)
	if arg != "" {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), testRole+"=dump")
		child.Stdout = os.Stdout
		if err := child.Run(); err != nil {
			say("%v", err)
			return 1
		}
	}
	return 0
}

// The launcher is not dumped and shows its environment to nobody; its ranks
// are as ever.
func TestKeepSecrets(t *testing.T) {
	p := startProcess(t, "dump:keep")
	if code, _ := p.end(t); code != 0 {
		t.Errorf("code %d: %s", code, p.out.String())
	}
	if got := strings.Fields(p.out.String()); strings.Join(got, " ") != "dumpable 0 dumpable 1" {
		t.Errorf("%q, want launcher 0 and rank 1", got)
	}
}
