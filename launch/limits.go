// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// minAddressSpace is what Go's runtime and its threads reserve, which is mostly never used.
const minAddressSpace = 1400 << 20

// CheckLimits says whether the limits of this process (ulimit) are such that it can start
// ranks at all: without, the Go runtime would end it with a trace of its own.
func CheckLimits() error {
	if have, ok := limit(unix.RLIMIT_AS); ok && have < minAddressSpace {
		return fmt.Errorf("the limit on address space (ulimit -v) is %d MiB, and Go reserves %d MiB at its start: raise it; a cgroup (systemd-run -p MemoryMax=…) limits the memory that is used", have>>20, minAddressSpace>>20)
	}
	return nil
}

// Open files that a job needs: of the agent itself, and of each rank, whose output comes
// through two pipes, news through a third, and the process is one too.
const (
	ownFiles  = 24
	rankFiles = 4
)

// checkFiles says whether this process may have enough of them. Without, it could not even
// remove what it has made.
func checkFiles(cfg *Config) error {
	need := uint64(ownFiles + rankFiles*cfg.NumRanks)
	if cfg.Logs.Dir != os.DevNull {
		for i := range cfg.NumRanks {
			need += uint64(bits.OnesCount8(uint8(cfg.Logs.Redirects.Of(i) | cfg.Logs.Tee.Of(i))))
		}
	}
	if have, ok := limit(unix.RLIMIT_NOFILE); ok && have < need {
		return badConfig("NumRanks", "%d ranks here need %d open files, and this process may have %d (ulimit -n): raise the limit, or start fewer ranks", cfg.NumRanks, need, have)
	}
	return nil
}

// limit is what the system allows this process of a kind of thing, and whether it is limited.
func limit(kind int) (uint64, bool) {
	var l unix.Rlimit
	if unix.Getrlimit(kind, &l) != nil || l.Cur >= 1<<62 {
		return 0, false
	}
	return l.Cur, true
}

// limited is err, and the limit that it comes of, if it does.
func limited(err error) error {
	what, kind := "", 0
	switch {
	case errors.Is(err, syscall.EMFILE):
		what, kind = "%w: this process may have %d of them (ulimit -n), and each rank needs some: raise the limit, or start fewer ranks", unix.RLIMIT_NOFILE
	case errors.Is(err, syscall.EAGAIN):
		what, kind = "%w: this user may have %d processes and threads (ulimit -u), and a container may have fewer (pids.max): raise the limit, or start fewer ranks", unix.RLIMIT_NPROC
	default:
		return err
	}
	if n, ok := limit(kind); ok {
		return fmt.Errorf(what, err, n)
	}
	return err
}

// addressSpace says of a rank whose last words are of memory that there was none to be had
// under the limit on address space, if there is one: ranks inherit this process's.
func (f *Failure) addressSpace() string {
	have, ok := limit(unix.RLIMIT_AS)
	if !ok || !slices.ContainsFunc(f.Tail, func(line string) bool {
		if strings.Contains(line, "CUDA") || strings.Contains(line, "HIP") {
			return false // that is a GPU's memory
		}
		for _, text := range []string{"out of memory", "cannot allocate memory", "failed to reserve page summary memory", "pthread_create failed", "MemoryError", "bad_alloc", "Cannot allocate memory"} {
			if strings.Contains(line, text) {
				return true
			}
		}
		return false
	}) {
		return ""
	}
	return fmt.Sprintf("it may have %d MiB of address space (ulimit -v), and asked for more", have>>20)
}
