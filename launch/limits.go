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

// minAddressSpace is the address space that the Go runtime and its threads reserve. They
// use only a small part of it.
const minAddressSpace = 1400 << 20

// CheckLimits checks whether the limits of this process (ulimit) let it start ranks at all.
// If they do not, the Go runtime would end a rank with a trace that explains nothing.
func CheckLimits() error {
	if have, ok := limit(unix.RLIMIT_AS); ok && have < minAddressSpace {
		return fmt.Errorf("the limit on address space (ulimit -v) is %d MiB, and Go reserves %d MiB at its start: raise it; a cgroup (systemd-run -p MemoryMax=…) limits the memory that is used", have>>20, minAddressSpace>>20)
	}
	return nil
}

// The open files that the agent needs: ownFiles for itself, and rankFiles for each rank,
// which are two pipes for its output, one for the agent's news, and one for its process.
const (
	ownFiles  = 24
	rankFiles = 4
)

// checkFiles checks whether this process may open enough files. If it may not, it could not
// even remove what it has made.
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

// limit returns a limit of this process, and whether there is one.
func limit(kind int) (uint64, bool) {
	var l unix.Rlimit
	if unix.Getrlimit(kind, &l) != nil || l.Cur >= 1<<62 {
		return 0, false
	}
	return l.Cur, true
}

// limited returns err, with the limit that has caused it, if one has.
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

// addressSpace explains the failure of a rank whose last lines say that it got no memory,
// if there is a limit on address space. Ranks inherit the limit of this process.
func (f *Failure) addressSpace() string {
	have, ok := limit(unix.RLIMIT_AS)
	if !ok || !slices.ContainsFunc(f.Tail, func(line string) bool {
		if strings.Contains(line, "CUDA") || strings.Contains(line, "HIP") {
			return false // the line is about the memory of a GPU
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
