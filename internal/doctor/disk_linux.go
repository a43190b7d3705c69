// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/memlimit"
)

// fileSystems are the names of file systems that checks know, by their numbers.
var fileSystems = map[int64]string{
	unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.SMB2_SUPER_MAGIC: "cifs", unix.FUSE_SUPER_MAGIC: "fuse",
	0x0bd00bd0: "lustre", 0x47504653: "gpfs", 0x19830326: "beegfs", 0x2fc12fc1: "zfs", 0x00c36400: "ceph",
}

// readDisk describes a directory, and writes a small file there and a large one for a tenth
// of a second at most. Both are removed.
func readDisk(use, path string) Disk {
	d := Disk{Use: use, Path: path}
	if abs, err := filepath.Abs(path); err == nil {
		d.Path = abs
	}
	// A directory that will be made lies where its parent is.
	at := d.Path
	for use == "dir" && at != "/" {
		if _, err := os.Stat(at); !errors.Is(err, os.ErrNotExist) {
			break
		}
		at = filepath.Dir(at)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		d.Error = err.Error()
		return d
	}
	size := uint64(st.Bsize)
	d.FS = fileSystems[int64(st.Type)]
	if d.FS == "" {
		d.FS = "0x" + strconv.FormatInt(int64(st.Type), 16)
	}
	d.Size, d.Free, d.Inodes, d.FreeNodes = st.Blocks*size, st.Bavail*size, st.Files, st.Ffree
	d.NoExec = st.Flags&unix.ST_NOEXEC != 0
	d.Error = d.try(at)
	return d
}

// try writes, and returns why it cannot; "" if it can.
func (d *Disk) try(dir string) string {
	f, err := os.CreateTemp(dir, ".cohort-doctor-")
	if err != nil {
		return reason(err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * 7)
	}
	begin := time.Now()
	if _, err := f.Write(block[:4096]); err != nil {
		return reason(err)
	}
	if err := f.Sync(); err != nil {
		return reason(err)
	}
	d.SyncMS = float64(time.Since(begin).Microseconds()) / 1e3
	if d.Free < 64<<20 || d.Use == "shm" {
		return ""
	}
	begin, n := time.Now(), 0
	for n < 16<<20 && time.Since(begin) < 100*time.Millisecond {
		if _, err := f.Write(block); err != nil {
			return reason(err)
		}
		n += len(block)
	}
	if err := f.Sync(); err != nil {
		return reason(err)
	}
	d.BytesPerS = float64(n) / time.Since(begin).Seconds()
	return ""
}

// reason is what the system says, without the name of the trial file.
func reason(err error) string {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no.Error()
	}
	return err.Error()
}

// machine is a text that is equal for all processes of one host, and of one namespace of
// its network.
func machine() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	net, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + net
}

// oomKills returns how many processes of this cgroup were killed for memory.
func oomKills() int {
	dir, _ := memlimit.Cgroup("/proc/self/cgroup", "/sys/fs/cgroup")
	b, err := os.ReadFile(filepath.Join(dir, "memory.events"))
	if dir == "" || err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if w := strings.Fields(line); len(w) == 2 && w[0] == "oom_kill" {
			n, _ := strconv.Atoi(w[1])
			return n
		}
	}
	return 0
}
