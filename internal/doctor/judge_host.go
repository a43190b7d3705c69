// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// one is a list of one finding.
func one(l Level, what, mend string) []Finding { return []Finding{{Level: l, What: what, Mend: mend}} }

// size writes a number of bytes.
func size(n uint64) string {
	for i, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if u := float64(uint64(1) << (40 - 10*i)); float64(n) >= u {
			text := strconv.FormatFloat(float64(n)/u, 'f', -1, 64)
			return strings.TrimSuffix(text[:min(4, len(text))], ".") + " " + unit
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

func judgeOpenFiles(f *Facts) []Finding {
	// Beside connections, a process has files, libraries and event queues.
	need := 512 + 2*f.Options.World
	have, ok := f.amount(fingerprint.Limits, "open_files")
	if !ok || have >= float64(need) {
		return nil
	}
	return one(Problem, fmt.Sprintf("a process may open %.0f files, and a rank of %d needs about %d", have, max(1, f.Options.World), need),
		"ulimit -n 65536  # as root; to keep it, a line in /etc/security/limits.conf: * - nofile 65536")
}

func judgeProcesses(f *Facts) (out []Finding) {
	need := f.Options.Ranks * (32 + 4*max(1, int(usable(f.Print))))
	if have, ok := f.amount(fingerprint.Limits, "processes"); ok && have < float64(need) && f.Print.Get(fingerprint.Limits, "user") != "0" {
		out = append(out, one(Problem, fmt.Sprintf("this user may have %.0f processes and threads, and %d ranks need about %d", have, f.Options.Ranks, need),
			"ulimit -u 65536  # to keep it, a line in /etc/security/limits.conf: * - nproc 65536")...)
	}
	if have, ok := f.amount(fingerprint.Limits, "pids"); ok && have < float64(need) {
		mend := "give the container a larger pids limit: --pids-limit 4096"
		if file := f.Print.Get(fingerprint.Limits, "pids_file"); file != "" {
			mend = fingerprint.Lift(file)
		}
		out = append(out, one(Problem, fmt.Sprintf("the cgroup may have %.0f processes and threads, and %d ranks need about %d", have, f.Options.Ranks, need), mend)...)
	}
	return out
}

func judgeAddressSpace(f *Facts) []Finding {
	have, ok := f.amount(fingerprint.Limits, "address_space")
	if !ok || have >= 4<<30 {
		return nil
	}
	return one(Problem, fmt.Sprintf("a process may have %s of address space", size(uint64(have))), "ulimit -v unlimited")
}

func judgeFileSize(f *Facts) []Finding {
	have, ok := f.amount(fingerprint.Limits, "file_size")
	if !ok || have >= 16<<30 {
		return nil
	}
	return one(Problem, fmt.Sprintf("a file may have %s", size(uint64(have))), "ulimit -f unlimited")
}

func judgeMemory(f *Facts) (out []Finding) {
	ranks := uint64(max(1, f.Options.Ranks))
	if f.RoomOf != "" && f.Room/ranks < 512<<20 {
		mend := "end other programs, or start fewer ranks"
		if file := f.Print.Get(fingerprint.Memory, "limit_file"); file != "" && strings.Contains(f.RoomOf, "cgroup") {
			mend = fingerprint.Lift(file) + "  # or give the container more memory"
		}
		out = append(out, one(Problem, fmt.Sprintf("%s of memory are left for %d ranks, by %s", size(f.Room), ranks, f.RoomOf), mend)...)
	}
	return out
}

func judgeProcessors(f *Facts) (out []Finding) {
	have := usable(f.Print)
	if have == 0 {
		return nil
	}
	ranks := max(1, f.Options.Ranks)
	limit := fmt.Sprintf("%s processors", f.Print.Get(fingerprint.CPU, "allowed"))
	fewer := "start 1 rank"
	if have >= 2 {
		fewer = fmt.Sprintf("start %d ranks", int(have))
	}
	mend := fewer
	if allowed, ok := f.amount(fingerprint.CPU, "allowed"); ok && have < allowed {
		limit = fmt.Sprintf("the time of %.4g processors, by the quota of the cgroup", have)
		if file := f.Print.Get(fingerprint.CPU, "quota_file"); file != "" {
			mend = fingerprint.Lift(file) + "  # or give the container more CPUs; or " + fewer
		}
		// Go counts processors, not the quota: more threads than quota are stopped for
		// part of each period.
		if have < allowed && have >= float64(ranks) && f.variable("COHORT_NUM_THREADS") == "" && int(allowed)/ranks*ranks > int(have) {
			out = append(out, one(Warning, fmt.Sprintf("%d ranks would start %d threads, and have %s", ranks, int(allowed)/ranks*ranks, limit),
				fmt.Sprintf("export COHORT_NUM_THREADS=%d OMP_NUM_THREADS=%d", max(1, int(have)/ranks), max(1, int(have)/ranks)))...)
		}
	}
	if float64(ranks) > have {
		out = append(out, one(Warning, fmt.Sprintf("%d ranks have %s", ranks, limit), mend)...)
	}
	for _, name := range []string{"COHORT_NUM_THREADS", "OMP_NUM_THREADS"} {
		if n, err := strconv.Atoi(f.variable(name)); err == nil && float64(n*ranks) > have && n > 1 {
			out = append(out, one(Warning, fmt.Sprintf("%s=%d, so that %d ranks start %d threads, and have %s", name, n, ranks, n*ranks, limit),
				fmt.Sprintf("export %s=%d", name, max(1, int(have)/ranks)))...)
		}
	}
	return out
}

func judgeSharedMemory(f *Facts) []Finding {
	d := f.disk("shm")
	switch {
	case d == nil || f.Print.Get(fingerprint.System, "os") != "linux":
		return nil
	case d.FS != "tmpfs":
		return one(Warning, "/dev/shm is no file system in memory", "mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm")
	case d.Error != "" && d.Free > 0:
		return one(Problem, "/dev/shm cannot be written to: "+d.Error, "mount -o remount,rw,mode=1777 /dev/shm")
	case d.Free < 256<<20 && d.Size < 512<<20:
		return one(Warning, fmt.Sprintf("/dev/shm has %s", size(d.Size)), "mount -o remount,size=2G /dev/shm  # for a container: --shm-size 2g")
	case d.Free < 256<<20:
		return one(Warning, fmt.Sprintf("/dev/shm has %s left of %s", size(d.Free), size(d.Size)), "ls -lS /dev/shm  # and remove what ended programs have left")
	}
	return nil
}

func judgeGPUs(f *Facts) (out []Finding) {
	for _, n := range f.GPUNotes {
		switch {
		case strings.Contains(n, "version mismatch"):
			out = append(out, one(Problem, "nvidia-smi: the driver's library and kernel module have different versions, as after an update", "rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia  # or start the host again")...)
		case strings.Contains(n, "GPUs") && !strings.Contains(n, "no nvidia-smi"):
			out = append(out, one(Problem, n, "nvidia-smi  # and mend what it says")...)
		}
	}
	if list := f.variable("CUDA_VISIBLE_DEVICES"); list != "" && len(f.GPUs) > 0 {
		for name := range strings.SplitSeq(list, ",") {
			if n, err := strconv.Atoi(strings.TrimSpace(name)); err == nil && n >= len(f.GPUs) {
				out = append(out, one(Problem, fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s names GPU %d, and the host has %d", list, n, len(f.GPUs)), "unset CUDA_VISIBLE_DEVICES")...)
			}
		}
	}
	for _, g := range f.GPUs {
		if g.Memory > 0 && g.Used > g.Memory/2 {
			out = append(out, one(Warning, fmt.Sprintf("GPU %d has %s of %s in use", g.Index, size(g.Used), size(g.Memory)), "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv  # and end the other program")...)
		}
	}
	return out
}
