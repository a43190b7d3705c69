// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/internal/devices"
	"github.com/cohort-ml/cohort/internal/fingerprint"
)

// healthy are the facts of a host without any fault.
func healthy() *Facts {
	p := &fingerprint.Fingerprint{}
	for section, values := range map[string]map[string]string{
		fingerprint.System:  {"os": "linux"},
		fingerprint.CPU:     {"allowed": "8", "quota": "unlimited"},
		fingerprint.Memory:  {"limit": "unlimited"},
		fingerprint.Limits:  {"open_files": "1048576", "processes": "63000", "address_space": "unlimited", "file_size": "unlimited", "pids": "unlimited", "user": "1000"},
		fingerprint.Network: {"ports": "32768 60999", "tcp_rmem": "4096 131072 6291456", "tcp_wmem": "4096 16384 4194304"},
	} {
		for k, v := range values {
			p.Set(section, k, v)
		}
	}
	return &Facts{
		Host: "a", Options: Options{Ranks: 4, World: 4, Port: DefaultPort}, Print: p, Room: 16 << 30, RoomOf: "the memory of the machine",
		Disks: []Disk{{Use: "dir", Path: "/data", FS: "ext4", Size: 1 << 40, Free: 1 << 39, Inodes: 1 << 20, FreeNodes: 1 << 19, SyncMS: 4},
			{Use: "tmp", Path: "/tmp", FS: "tmpfs", Size: 8 << 30, Free: 7 << 30}, {Use: "shm", Path: "/dev/shm", FS: "tmpfs", Size: 8 << 30, Free: 8 << 30}},
		Interfaces: []Interface{{Name: "lo", MTU: 65536, Loopback: true, Addrs: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
			{Name: "eth0", MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}},
		Lookups: []Lookup{{Name: "a", Own: true, Addrs: []netip.Addr{netip.MustParseAddr("127.0.1.1")}}, {Name: "localhost", Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}}},
	}
}

// TestJudge: each fault gives the finding of its check, and nothing else.
func TestJudge(t *testing.T) {
	if found := Judge(healthy()); len(found) != 0 {
		t.Fatalf("a healthy host: %+v", found)
	}
	set := func(section, key, value string) func(*Facts) {
		return func(f *Facts) { f.Print.Set(section, key, value) }
	}
	tested := map[string]bool{}
	for _, c := range []struct {
		check string
		level Level
		what  string
		mend  string
		fault func(f *Facts)
	}{
		{"loopback", Problem, "lo is down", "ip link set dev lo up", func(f *Facts) { f.Loopback, f.Interfaces = "network is unreachable", f.Interfaces[1:] }},
		{"loopback", Problem, "timed out", "iptables", func(f *Facts) { f.Loopback = "i/o timed out" }},
		{"localhost", Problem, "10.9.9.9", "127.0.0.1 localhost", func(f *Facts) { f.Lookups[1].Addrs = []netip.Addr{netip.MustParseAddr("10.9.9.9")} }},
		{"localhost", Problem, "nowhere: no such host", "127.0.0.1 localhost", func(f *Facts) { f.Lookups[1].Addrs, f.Lookups[1].Error = nil, "no such host" }},
		{"own name", Warning, "a leads nowhere", "10.0.0.1 a", func(f *Facts) { f.Lookups[0].Error = "no such host" }},
		{"own name", Warning, "takes 5.0 s", "10.0.0.1 a", func(f *Facts) { f.Lookups[0].Millis = 5000 }},
		{"master port", Warning, "29500", "--master-port 29501", func(f *Facts) { f.PortError = "address already in use" }},
		{"port range", Problem, "100 ports", "ip_local_port_range", set(fingerprint.Network, "ports", "40000 40099")},
		{"interface variable", Problem, "GLOO_SOCKET_IFNAME=ib0", "unset GLOO_SOCKET_IFNAME", set(fingerprint.Variables, "GLOO_SOCKET_IFNAME", "ib0")},
		{"interface variable", Problem, "NCCL_SOCKET_IFNAME==eth", "unset", set(fingerprint.Variables, "NCCL_SOCKET_IFNAME", "=eth")},
		{"interface variable", Problem, "COHORT_INTERFACE=10.1.0.0/16", "unset", set(fingerprint.Variables, "COHORT_INTERFACE", "10.1.0.0/16")},
		{"tcp buffers", Warning, "tcp_rmem allows buffers of 128 KiB", "sysctl -w net.ipv4.tcp_rmem=", set(fingerprint.Network, "tcp_rmem", "4096 65536 131072")},
		{"open files", Problem, "256 files", "ulimit -n 65536", set(fingerprint.Limits, "open_files", "256")},
		{"processes", Problem, "100 processes", "ulimit -u", set(fingerprint.Limits, "processes", "100")},
		{"processes", Problem, "the cgroup", "echo max > /x/pids.max", func(f *Facts) {
			f.Print.Set(fingerprint.Limits, "pids", "50")
			f.Print.Set(fingerprint.Limits, "pids_file", "/x/pids.max")
		}},
		{"address space", Problem, "1 GiB", "ulimit -v", set(fingerprint.Limits, "address_space", "1073741824")},
		{"file size", Problem, "1 MiB", "ulimit -f", set(fingerprint.Limits, "file_size", "1048576")},
		{"memory", Problem, "1 GiB of memory are left for 4 ranks", "echo max > /x/memory.max", func(f *Facts) {
			f.Room, f.RoomOf = 1<<30, "memory.max of the cgroup /x"
			f.Print.Set(fingerprint.Memory, "limit_file", "/x/memory.max")
		}},
		{"processors", Warning, "4 ranks have 2 processors", "start 2 ranks", set(fingerprint.CPU, "allowed", "2")},
		{"processors", Warning, "the time of 1.5 processors", "echo max > /x/cpu.max", func(f *Facts) {
			f.Print.Set(fingerprint.CPU, "quota", "1.5")
			f.Print.Set(fingerprint.CPU, "quota_file", "/x/cpu.max")
		}},
		{"processors", Warning, "4 ranks would start 8 threads", "COHORT_NUM_THREADS=1", set(fingerprint.CPU, "quota", "4")},
		{"processors", Warning, "OMP_NUM_THREADS=8", "OMP_NUM_THREADS=2", set(fingerprint.Variables, "OMP_NUM_THREADS", "8")},
		{"shared memory", Warning, "64 MiB", "--shm-size", func(f *Facts) { f.Disks[2].Size, f.Disks[2].Free = 64<<20, 64<<20 }},
		{"shared memory", Warning, "1 MiB left of 8 GiB", "ls -lS", func(f *Facts) { f.Disks[2].Free = 1 << 20 }},
		{"shared memory", Problem, "read-only", "remount,rw", func(f *Facts) { f.Disks[2].Error = "read-only file system" }},
		{"disk space", Warning, "/data has 100 MiB left", "du ", func(f *Facts) { f.Disks[0].Free = 100 << 20 }},
		{"disk space", Problem, "/tmp has 0 bytes left", "TMPDIR", func(f *Facts) { f.Disks[1].Free, f.Disks[1].Error = 0, "no space left on device" }},
		{"disk space", Problem, "10 more files", "df -i", func(f *Facts) { f.Disks[0].FreeNodes = 10 }},
		{"disk writes", Problem, "/data cannot be written to: read-only file system", "remount,rw /data", func(f *Facts) { f.Disks[0].Error = "read-only file system" }},
		{"disk writes", Warning, "900 ms", "--out", func(f *Facts) { f.Disks[0].SyncMS = 900 }},
		{"programs in tmp", Warning, "/tmp is mounted noexec", "remount,exec /tmp", func(f *Facts) { f.Disks[1].NoExec = true }},
		{"gpus", Problem, "different versions", "modprobe nvidia", func(f *Facts) {
			f.GPUNotes = []string{"memory and links of the GPUs are not known: nvidia-smi: exit status 18: Failed to initialize NVML: Driver/library version mismatch"}
		}},
		{"gpus", Problem, "names GPU 3", "unset CUDA_VISIBLE_DEVICES", func(f *Facts) {
			f.GPUs = []devices.GPU{{Index: 0}, {Index: 1}}
			f.Print.Set(fingerprint.Variables, "CUDA_VISIBLE_DEVICES", "0,3")
		}},
		{"gpus", Warning, "GPU 0 has 60 GiB of 80 GiB in use", "nvidia-smi", func(f *Facts) { f.GPUs = []devices.GPU{{Memory: 80 << 30, Used: 60 << 30}} }},
	} {
		tested[c.check] = true
		f := healthy()
		c.fault(f)
		found := Judge(f)
		if len(found) != 1 || found[0].Check != c.check || found[0].Level != c.level || !strings.Contains(found[0].What, c.what) || !strings.Contains(found[0].Mend, c.mend) || found[0].Why == "" {
			t.Errorf("%s, %q: found %+v", c.check, c.what, found)
		}
	}
	for _, c := range Checks() {
		if c.one != nil && !tested[c.Name] {
			t.Errorf("no fault for the check %q", c.Name)
		}
	}
	// What is no fault.
	for name, change := range map[string]func(f *Facts){
		"a variable of NCCL that leaves interfaces out": set(fingerprint.Variables, "NCCL_SOCKET_IFNAME", "^docker0"),
		"the beginning of a name for NCCL":              set(fingerprint.Variables, "NCCL_SOCKET_IFNAME", "eth"),
		"an address of an interface":                    set(fingerprint.Variables, "COHORT_INTERFACE", "10.0.0.1"),
		"few processes for root": func(f *Facts) {
			f.Print.Set(fingerprint.Limits, "processes", "100")
			f.Print.Set(fingerprint.Limits, "user", "0")
		},
		"facts that are missing": func(f *Facts) { *f = Facts{Print: &fingerprint.Fingerprint{}, Options: f.Options} },
	} {
		f := healthy()
		change(f)
		if found := Judge(f); len(found) != 0 {
			t.Errorf("%s: %+v", name, found)
		}
	}
}
