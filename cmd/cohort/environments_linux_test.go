// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

var allPlanted = flag.Bool("planted", false, "plant every difference between two nodes, not only a sample")

// planted is a difference between two nodes.
type planted struct {
	name  string
	plant string // what a shell does in the namespaces of the second node
	key   string // that is named
	kind  string // must or warn
	says  string // what the table says, beside the key
	// mend is "" if the printed command is run in the same shell after plant, and the nodes
	// are then equal; else it is what the test does in place of a sentence, and "-" means
	// that there is nothing to run.
	mend   string
	sample bool   // it is played in CI too
	venv   bool   // the program is Python
	train  bool   // the program is cohort train lm with $MODEL and $ARGS
	both   string // what both nodes do before
	skip   string
}

// plants lists differences that are planted in the real system: namespaces with their own
// mounts, network, host name, limits and cgroups. Only the clock is shifted by a seam.
func plants() []planted {
	return []planted{
		{name: "nothing", sample: true},
		{name: "another version of a package", plant: `$P -m pip install -q --no-deps alpha==2.0`, key: "packages.alpha", kind: "must", says: "alpha==1.0", venv: true, sample: true},
		{name: "a package too few", plant: `$P -m pip uninstall -q -y alpha`, key: "packages.alpha", kind: "must", says: "alpha==1.0", venv: true},
		{name: "a package too many", plant: `$P -m pip install -q --no-deps beta==1.0`, key: "packages.beta", kind: "must", says: "uninstall -y beta", venv: true},
		{name: "another build of conda", plant: `mkdir -p $V/conda-meta; echo '{"name":"alpha","version":"1.0","build":"py311_1"}' > $V/conda-meta/alpha.json`, key: "packages.alpha", kind: "must", says: "conda py311_1", mend: `rm -r $V/conda-meta`, venv: true},
		{name: "another Python", plant: `sed -i 's/^version = .*/version = 3.10.1/' $V/pyvenv.cfg`, key: "python.version", kind: "must", says: "3.10.1", mend: "-", venv: true},
		{name: "another program", plant: `echo pass >> $V/train.py`, key: "program.sha256", kind: "must", says: "copy the program of another node", mend: `echo > $V/train.py`, venv: true},
		{name: "a variable too many", plant: `export NCCL_ALGO=Tree`, key: "variables.NCCL_ALGO", kind: "must", says: "unset NCCL_ALGO"},
		{name: "a variable too few", plant: `unset GLOO_X`, key: "variables.GLOO_X", kind: "must", says: "export GLOO_X=1"},
		{name: "another value of a variable", plant: `export GLOO_X='2 3'`, key: "variables.GLOO_X", kind: "must", says: "2 3"},
		{name: "another transport", plant: `export COHORT_ENCRYPT=all`, key: "variables.COHORT_ENCRYPT", kind: "must", says: "unset COHORT_ENCRYPT"},
		{name: "threads", plant: `export OMP_NUM_THREADS=1`, key: "variables.OMP_NUM_THREADS", kind: "warn", says: "unset"},
		{name: "a locale", plant: `export LC_ALL=POSIX`, key: "variables.LC_ALL", kind: "warn", says: "unset"},
		// Go raises the soft limit of open files by itself, and only some roots may raise the hard one.
		{name: "open files", plant: `ulimit -n 300`, key: "limits.open_files", kind: "warn", says: "ulimit -n ", mend: "-"},
		{name: "address space", plant: `ulimit -S -v 8000000`, key: "limits.address_space", kind: "must", says: "8192000000 bytes"},
		{name: "stack", plant: `ulimit -S -s 4096`, key: "limits.stack", kind: "warn", says: "4194304 bytes"},
		{name: "locked memory", plant: `ulimit -S -l 64`, key: "limits.locked_memory", kind: "warn", says: "65536 bytes"},
		{name: "processes", plant: `ulimit -S -u 5000`, key: "limits.processes", kind: "warn", says: "5000 processes"},
		{name: "file size", plant: `ulimit -S -f 1000000`, key: "limits.file_size", kind: "must", says: "ulimit -f unlimited"},
		{name: "umask", plant: `umask 077`, key: "limits.umask", kind: "warn", says: "0077"},
		{name: "shared memory", plant: `mount -o remount,size=1000k /dev/shm`, key: "memory.shm", kind: "warn", says: "1024000 bytes", sample: true},
		{name: "MTU", plant: `ip link set dev eth0 mtu 1280`, key: "network.mtu.eth0", kind: "warn", says: "1280 bytes"},
		{name: "an interface that is down", plant: `ip link set dev eth0 down`, key: "network.state.eth0", kind: "warn", says: "down"},
		{name: "no IPv6", plant: `ip -6 addr flush dev eth0 scope global`, key: "network.families.eth0", kind: "warn", says: "ipv4 ipv6", mend: `ip -6 addr add fd00:1::1/64 dev eth0 nodad`},
		{name: "the trap in the hosts file", plant: `echo "127.0.1.1 $(hostname)" > $V/h; cat /etc/hosts >> $V/h; cat $V/h > /etc/hosts`, key: "network.own_name", kind: "warn", says: "loopback 127.0.1.1", sample: true},
		{name: "the range of ports", plant: `sysctl -qw net.ipv4.ip_local_port_range='20000 60999'`, key: "network.ports", kind: "warn", says: "20000 60999"},
		{name: "congestion control", plant: `sysctl -qw net.ipv4.tcp_congestion_control=reno`, key: "network.congestion", kind: "warn", says: "reno"},
		{name: "the queue of connections", plant: `sysctl -qw net.core.somaxconn=16`, key: "network.somaxconn", kind: "warn", says: "16 connections"},
		{name: "receive buffers", plant: `sysctl -qw net.ipv4.tcp_rmem='4096 8192 16384'`, key: "network.tcp_rmem", kind: "warn", says: "4096 8192 16384"},
		{name: "reverse paths", plant: `sysctl -qw net.ipv4.conf.all.rp_filter=1`, key: "network.rp_filter", kind: "warn", says: "rp_filter"},
		{name: "name servers", plant: `echo 'nameserver 192.0.2.53' > /etc/resolv.conf`, key: "network.nameservers", kind: "warn", says: "192.0.2.53", mend: `cat $V/../resolv.conf > /etc/resolv.conf`},
		{name: "a time zone", plant: `ln -sf /usr/share/zoneinfo/Asia/Tokyo /etc/localtime`, key: "clock.zone", kind: "warn", says: "Asia/Tokyo"},
		{name: "a clock", plant: `export COHORT_TEST_CLOCK=90s`, key: "clock.time", kind: "warn", says: "1m30s after", mend: `unset COHORT_TEST_CLOCK`, sample: true},
		{name: "a masked feature of the processor", plant: `sed 's/ avx2 / /' /proc/cpuinfo > $V/cpuinfo; mount --bind $V/cpuinfo /proc/cpuinfo`, key: "cpu.features", kind: "warn", says: "without avx2", mend: `umount /proc/cpuinfo`},
		{name: "other kernels", plant: `export GODEBUG=cpu.avx2=off`, key: "cpu.kernels", kind: "warn", says: "portable"},
		{name: "fewer cores", plant: `taskset -pc 0 $$ > $V/out`, key: "cpu.allowed", kind: "warn", says: "1 cores", mend: `taskset -pc 0-1 $$ > $V/out`},
		{name: "a quota of the processor", plant: `mkdir $CG/cpu/$N; echo $$ > $CG/cpu/$N/cgroup.procs; echo 50000 > $CG/cpu/$N/cpu.cfs_quota_us`, key: "cpu.quota", kind: "warn", says: "0.5 cores", skip: "cpu"},
		{name: "a limit of processes", plant: `mkdir $CG/pids/$N; echo $$ > $CG/pids/$N/cgroup.procs; echo 3000 > $CG/pids/$N/pids.max`, key: "limits.pids", kind: "warn", says: "3000 processes", skip: "pids"},
		{name: "a limit of memory", plant: `mkdir $CG/memory/$N; echo $$ > $CG/memory/$N/cgroup.procs; echo 4000000000 > $CG/memory/$N/memory.limit_in_bytes`, key: "memory.limit", kind: "warn", says: "bytes", skip: "memory"},
		{name: "NCCL", both: `mount -t tmpfs none /usr/local/lib; touch /usr/local/lib/libnccl.so.2.27.3`, plant: `mv /usr/local/lib/libnccl.so.2.27.3 /usr/local/lib/libnccl.so.2.28.3`, key: "gpu.nccl", kind: "must", says: "install NCCL 2.27.3", mend: `mv /usr/local/lib/libnccl.so.2.28.3 /usr/local/lib/libnccl.so.2.27.3`},
		{name: "a setting", plant: `ARGS='--clip 3'`, key: "run.setting.clip", kind: "must", says: "give --clip 1 to these ranks", mend: `ARGS=`, train: true, sample: true},
		{name: "a larger model", plant: `ARGS='--width 64'`, key: "run.setting.width", kind: "must", says: "give --width 32 to these ranks", mend: `ARGS=`, train: true},
		{name: "other data", plant: `tr a-c b-d <$V/text >$V/t; cat $V/t >$V/text`, key: "run.data.text", kind: "must", says: "copy text of the data from another node", mend: `cat $V/../made/text >$V/text`, train: true, sample: true},
		{name: "another model to begin with", both: `MODEL="--init-from $V/base"`, plant: `mv $V/base $V/right; mv $V/wrong $V/base`, key: "run.weights", kind: "must", says: "from another node: its weights have the checksum", mend: `mv $V/base $V/wrong; mv $V/right $V/base`, train: true},
	}
}

// nodeNetwork makes loopback and an interface in the namespace of a node. Nodes that train have the
// network of the host.
const nodeNetwork = `set -e
ip link set dev lo up; ip link add eth0 type veth peer name veth9; ip link set dev veth9 up; ip addr add 10.9.0.$ADDR/24 dev eth0; ip -6 addr add fd00:1::$ADDR/64 dev eth0 nodad; ip link set dev eth0 up
`

// nodeSetup makes a node in its namespaces: a name, /etc, /dev/shm.
const nodeSetup = `set -e
hostname node$ADDR
mount --bind $V/../etc /etc; printf '127.0.0.1 localhost\n10.9.0.%s node%s\n' $ADDR $ADDR > /etc/hosts
mount -t tmpfs -o size=64m none /dev/shm
export GLOO_X=1 PYTHON_EXEC=$P
unset LC_ALL OMP_NUM_THREADS
ARGS=; MODEL="--vocab 300 --context 16 --width 32 --heads 2 --layers 1"
set +e
`

// wheel writes a package that pip can install.
func wheel(t *testing.T, dir, name, version string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, name+"-"+version+"-py3-none-any.whl"))
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	info := name + "-" + version + ".dist-info/"
	for path, text := range map[string]string{
		name + ".py":      "version = '" + version + "'\n",
		info + "METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":   name + ".py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n",
	} {
		w, err := z.Create(path)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	f.Close()
}

var mendLine = regexp.MustCompile(`(?m)^\s*mend: (.*)$`)

// TestPlantedDifferences: a difference between two nodes, in namespaces with their own mounts,
// is found before the ranks start and named with what mends it. With that, the nodes are
// equal. go test -run TestPlantedDifferences -planted plays all of them.
func TestPlantedDifferences(t *testing.T) {
	if os.Geteuid() != 0 || exec.Command("unshare", "-mnu", "ip", "link", "add", "x0", "type", "veth", "peer", "name", "x1").Run() != nil {
		t.Skip("needs root, unshare and ip")
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3")
	}
	base := t.TempDir()
	wheels := filepath.Join(base, "wheels")
	if err := os.Mkdir(wheels, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"alpha 1.0", "alpha 2.0", "beta 1.0"} {
		name, version, _ := strings.Cut(w, " ")
		wheel(t, wheels, name, version)
	}
	pip := []string{"PIP_NO_INDEX=1", "PIP_FIND_LINKS=" + wheels, "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore"}
	// The environment is at the same place on both nodes, as on real ones.
	v, made := filepath.Join(base, "v"), filepath.Join(base, "made")
	script := fmt.Sprintf(`set -e; %s -m venv %s; %s/bin/python -m pip install -q --no-deps alpha==1.0; echo > %s/train.py; cp -a %s %s; cp -a /etc %s/etc; cat /etc/resolv.conf > %s/resolv.conf`, python, v, v, v, v, made, base, base)
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), pip...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("needs venv and pip: %v\n%s", err, out)
	}
	learn := os.Args[0] + " train lm --data $V/text --out $V/out --steps 1 --batch 2 --eval-tokens 128 --sample-tokens 1"
	if err := os.WriteFile(filepath.Join(made, "text"), []byte(strings.Repeat("the cat sat on the mat, and a bad cab came by\n", 2000)), 0o644); err != nil {
		t.Fatal(err)
	}
	if *allPlanted {
		for seed, name := range map[string]string{"1": "base", "2": "wrong"} {
			cmd := exec.Command("sh", "-c", "V="+made+"; "+learn+" --ranks 1 --vocab 300 --context 16 --width 32 --heads 2 --layers 1 --out $V/"+name+" --seed "+seed)
			cmd.Env = append(os.Environ(), cliMain+"=1")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	}
	token := envvar.Token.Assign(transport.NewToken().Text())
	// pair starts two nodes, and returns their errors' output and exit codes.
	pair := func(t *testing.T, c *planted, mend string) (said [2]string, codes [2]int) {
		t.Helper()
		dir := t.TempDir()
		program := "/bin/true"
		namespaces, network := "-mnu", nodeNetwork
		switch {
		case c.venv:
			program = v + "/train.py"
		case c.train:
			program, namespaces, network = learn+" $MODEL $ARGS", "-mu", ""
		}
		var both sync.WaitGroup
		for i := range said {
			node := filepath.Join(dir, fmt.Sprint(i))
			text := fmt.Sprintf("N=%s; ADDR=%d; V=%s; P=$V/bin/python; CG=/sys/fs/cgroup\nmkdir %s; cp -a %s %s/v; cp -a %s/etc %s/etc\nmount --bind %s/v $V; mount --bind %s/etc %s/etc\n",
				"cohort-planted-"+filepath.Base(base), i+1, v, node, made, node, base, node, node, node, base) + network + nodeSetup + c.both + "\n"
			if i == 1 {
				// What the first node has is expected of the second.
				text += c.plant + "\n" + mend + "\nuntil grep -qs arrivals " + dir + "/meeting; do sleep 0.02; done\n"
			}
			text += fmt.Sprintf("exec %s run --nnodes 2 --rdzv-backend file --rdzv-endpoint %s/meeting --rdzv-id planted --nproc-per-node 1 %s", os.Args[0], dir, program)
			j := exec.Command("unshare", namespaces, "--propagation", "private", "bash", "-c", text)
			j.Env = append(os.Environ(), cliMain+"=1", token, "GORACE=atexit_sleep_ms=0", "TMPDIR="+dir) // for the records of ranks that fail
			j.Env = append(j.Env, pip...)
			both.Go(func() {
				out, _ := j.CombinedOutput()
				said[i], codes[i] = string(out), j.ProcessState.ExitCode()
			})
		}
		both.Wait()
		return said, codes
	}
	for _, c := range plants() {
		if !c.sample && !*allPlanted {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			if c.skip != "" {
				if _, err := os.Stat("/sys/fs/cgroup/" + c.skip + "/cgroup.procs"); err != nil {
					t.Skip("needs the cgroup controller " + c.skip + " of version 1")
				}
				t.Cleanup(func() { _ = os.Remove("/sys/fs/cgroup/" + c.skip + "/cohort-planted-" + filepath.Base(base)) })
			}
			said, codes := pair(t, &c, "")
			if c.key == "" {
				if codes != [2]int{} || strings.Contains(said[0]+said[1], "differ") {
					t.Errorf("equal nodes: codes %v\n%s\n%s", codes, said[0], said[1])
				}
				return
			}
			want := 0
			if c.kind == "must" {
				want = 1
			}
			mend, node := "", "node2 ("
			if c.train {
				node = "rank 1 (host node2"
			}
			for i, text := range said {
				if codes[i] != want {
					t.Errorf("node %d: code %d, want %d\n%s", i, codes[i], want, text)
				}
				lines := strings.Split(text, "\n")
				for k, line := range lines {
					if !strings.Contains(line, " "+c.key+" ") {
						continue
					}
					if !strings.Contains(line, c.kind) || !strings.Contains(line, node) || k+1 < len(lines) && !strings.Contains(line+lines[k+1], c.says) {
						t.Errorf("node %d says %q, want %s of %s with %q", i, line, c.kind, node, c.says)
					}
					if m := mendLine.FindStringSubmatch(lines[min(k+1, len(lines)-1)]); m != nil {
						mend = m[1]
					}
				}
				// Rank 0 prints the table of a run, and all ranks end by its first row.
				if !strings.Contains(text, strings.TrimPrefix(c.key, "run.")) {
					t.Errorf("node %d does not name %s:\n%s", i, c.key, text)
				}
			}
			switch {
			case t.Failed() || c.mend == "-":
				return
			case c.mend != "":
				mend = c.mend
			case mend == "":
				t.Fatalf("no line says how to mend it:\n%s", said[0])
			}
			if c.skip != "" {
				_ = os.Remove("/sys/fs/cgroup/" + c.skip + "/cohort-planted-" + filepath.Base(base))
			}
			said, codes = pair(t, &c, mend)
			if codes != [2]int{} || strings.Contains(said[0]+said[1], c.key) {
				t.Errorf("after %q: codes %v\n%s\n%s", mend, codes, said[0], said[1])
			}
		})
	}
}
