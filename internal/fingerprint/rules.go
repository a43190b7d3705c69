// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"path"
	"strings"
)

// Kind says what a difference of a key means.
type Kind string

// The kinds, the gravest first.
const (
	Must Kind = "must" // ranks would fail or compute something else: a difference stops the job
	Warn Kind = "warn" // the job may be slower, or fail later
	Told Kind = "told" // for people; never compared
)

// How values are compared.
type comparison int

const (
	equal   comparison = iota
	atLeast            // numbers: a smaller one is a difference, a larger one is none
	atMost             // numbers: a larger one is a difference
	list               // words: the missing ones and those too many are named
)

// Rule says what a key means.
type Rule struct {
	Section string
	Key     string // a key, or a pattern of path.Match such as mtu.*
	Kind    Kind
	Unit    string // of the value: bytes, cores, …; "" for texts
	Why     string // why a difference matters
	compare comparison
	// slack is the part of the expected number by which a number may be worse.
	slack float64
	// fine is a number up to which nothing is wrong, for atMost.
	fine float64
	// good is the value that is right if as many nodes have another one.
	good string
	// whole says that the section is a whole list: a missing key is a difference.
	whole bool
	// mend returns a command; nil if there is none.
	mend func(e, f string, m *mending) string
}

// Rules returns the table of rules. The first rule that fits a key holds.
func Rules() []Rule { return append([]Rule(nil), table...) }

// RuleOf returns the rule of a key. A key without a rule is only told.
func RuleOf(section, key string) Rule {
	for _, r := range table {
		if r.Section != section {
			continue
		}
		if ok, _ := path.Match(r.Key, strings.ReplaceAll(key, "/", "_")); ok {
			return r
		}
	}
	return Rule{Section: section, Key: key, Kind: Told}
}

var table = []Rule{
	{Section: Program, Key: "sha256", Kind: Must, Why: "the nodes run different programs", mend: mendProgram},
	{Section: Program, Key: "module", Kind: Must, Why: "the nodes run different programs", mend: mendModule},
	{Section: Program, Key: "version", Kind: Must, Why: "the nodes run different versions of the program", mend: mendModule},
	{Section: Program, Key: "dependencies", Kind: Must, Why: "the program was built with other modules", mend: mendModule},
	{Section: Program, Key: "go", Kind: Warn, Why: "the program was built by another Go", mend: mendModule},

	{Section: Cohort, Key: "version", Kind: Must, Why: "versions of Cohort may not understand each other", mend: mendCohort},
	{Section: Cohort, Key: "sha256", Kind: Warn, Why: "the binaries of Cohort differ", mend: mendCohort},

	{Section: System, Key: "os", Kind: Warn, Why: "limits and shared memory differ between systems"},
	{Section: System, Key: "arch", Kind: Warn, Why: "sums of other kernels have other last bits"},
	{Section: System, Key: "libc", Kind: Warn, Why: "packages with C code may need a newer libc", mend: say("run the node from the image of the others: it has libc %s")},
	{Section: System, Key: "kernel", Kind: Told},

	{Section: CPU, Key: "model", Kind: Warn, Why: "the slowest node sets the pace of all"},
	{Section: CPU, Key: "kernels", Kind: Warn, Why: "other instructions give sums with other last bits, and another speed", mend: mendFeatures},
	{Section: CPU, Key: "features", Kind: Warn, compare: list, Why: "programs choose their kernels by these: other bits, and another speed", mend: mendFeatures},
	{Section: CPU, Key: "online", Kind: Warn, Unit: "cores", compare: atLeast, Why: "the slowest node sets the pace of all", mend: mendOnline},
	{Section: CPU, Key: "allowed", Kind: Warn, Unit: "cores", compare: atLeast, Why: "threads share fewer cores than on other nodes", mend: mendAffinity},
	{Section: CPU, Key: "quota", Kind: Warn, Unit: "cores", compare: atLeast, Why: "the cgroup stops the threads for a part of each period", mend: mendQuota},
	{Section: CPU, Key: "governor", Kind: Warn, Why: "cores that save power compute slower", mend: mendGovernor},
	{Section: CPU, Key: "numa_nodes", Kind: Warn, Why: "threads reach memory at another speed"},

	{Section: Memory, Key: "total", Kind: Warn, Unit: "bytes", compare: atLeast, slack: 0.1, Why: "what fits the other nodes may not fit this one"},
	{Section: Memory, Key: "limit", Kind: Warn, Unit: "bytes", compare: atLeast, Why: "the kernel kills ranks that need more", mend: mendMemoryLimit},
	{Section: Memory, Key: "shm", Kind: Warn, Unit: "bytes", compare: atLeast, slack: 0.1, Why: "ranks and data loaders of a node share memory there", mend: mendShm},
	{Section: Memory, Key: "overcommit", Kind: Warn, Why: "the kernel refuses memory that it gives on other nodes", mend: sysctl("vm.overcommit_memory")},
	{Section: Memory, Key: "huge_pages", Kind: Warn, Why: "memory without huge pages is slower", mend: mendHugePages},
	{Section: Memory, Key: "max_map_count", Kind: Warn, Unit: "mappings", compare: atLeast, Why: "large programs with many tensors map much", mend: sysctl("vm.max_map_count")},

	{Section: Limits, Key: "open_files", Kind: Warn, Unit: "files", compare: atLeast, Why: "ranks with many connections and files fail", mend: ulimit("n", 1)},
	{Section: Limits, Key: "processes", Kind: Warn, Unit: "processes", compare: atLeast, slack: 0.1, Why: "threads and loader workers count as processes", mend: ulimit("u", 1)},
	{Section: Limits, Key: "locked_memory", Kind: Warn, Unit: "bytes", compare: atLeast, slack: 0.1, Why: "network adapters and pinned buffers lock memory", mend: ulimit("l", 1024)},
	{Section: Limits, Key: "address_space", Kind: Must, Unit: "bytes", compare: atLeast, Why: "Go and CUDA reserve much address space at their start", mend: ulimit("v", 1024)},
	{Section: Limits, Key: "data", Kind: Must, Unit: "bytes", compare: atLeast, Why: "ranks get no memory beyond it", mend: ulimit("d", 1024)},
	{Section: Limits, Key: "stack", Kind: Warn, Unit: "bytes", compare: atLeast, Why: "deep calls in C code fail", mend: ulimit("s", 1024)},
	{Section: Limits, Key: "file_size", Kind: Must, Unit: "bytes", compare: atLeast, Why: "checkpoints larger than this fail", mend: ulimit("f", 1024)},
	{Section: Limits, Key: "core", Kind: Told, Unit: "bytes"},
	{Section: Limits, Key: "cpu_time", Kind: Must, Unit: "seconds", compare: atLeast, Why: "the kernel ends ranks after this time", mend: ulimit("t", 1)},
	{Section: Limits, Key: "pids", Kind: Warn, Unit: "processes", compare: atLeast, Why: "the cgroup allows no more threads", mend: mendPids},
	{Section: Limits, Key: "umask", Kind: Warn, Why: "other nodes may not read the files of this one", mend: run("umask %s")},
	{Section: Limits, Key: "user", Kind: Warn, Why: "files on shared disks belong to another user"},

	{Section: Network, Key: "own_name", Kind: Warn, good: "address", Why: "the host's own name leads to a loopback address, which other nodes cannot reach", mend: mendOwnName},
	{Section: Network, Key: "mtu.*", Kind: Warn, Unit: "bytes", Why: "large packets are lost between interfaces of unequal MTU", mend: mendMTU},
	{Section: Network, Key: "speed.*", Kind: Warn, Unit: "Mbit/s", compare: atLeast, Why: "the slowest link sets the pace of all"},
	{Section: Network, Key: "state.*", Kind: Warn, good: "up", Why: "the interface carries nothing", mend: mendState},
	{Section: Network, Key: "address.*", Kind: Told},
	{Section: Network, Key: "families.*", Kind: Warn, Why: "nodes cannot connect by a family of addresses that one lacks", mend: mendFamilies},
	{Section: Network, Key: "hosts_file", Kind: Told},
	{Section: Network, Key: "nameservers", Kind: Warn, Why: "names may lead elsewhere", mend: say("put these into /etc/resolv.conf: %s")},
	{Section: Network, Key: "ports", Kind: Warn, Why: "a fixed port of the job may lie in the range for connections", mend: sysctl("net.ipv4.ip_local_port_range")},
	{Section: Network, Key: "congestion", Kind: Warn, Why: "links share their rate by another rule", mend: sysctl("net.ipv4.tcp_congestion_control")},
	{Section: Network, Key: "rmem_max", Kind: Warn, Unit: "bytes", compare: atLeast, Why: "long links need large buffers", mend: sysctl("net.core.rmem_max")},
	{Section: Network, Key: "wmem_max", Kind: Warn, Unit: "bytes", compare: atLeast, Why: "long links need large buffers", mend: sysctl("net.core.wmem_max")},
	{Section: Network, Key: "tcp_rmem", Kind: Warn, Why: "long links need large buffers", mend: sysctl("net.ipv4.tcp_rmem")},
	{Section: Network, Key: "tcp_wmem", Kind: Warn, Why: "long links need large buffers", mend: sysctl("net.ipv4.tcp_wmem")},
	{Section: Network, Key: "somaxconn", Kind: Warn, Unit: "connections", compare: atLeast, Why: "many ranks that connect at once are refused", mend: sysctl("net.core.somaxconn")},
	{Section: Network, Key: "rp_filter", Kind: Warn, Why: "packets that come by another interface are dropped", mend: sysctl("net.ipv4.conf.all.rp_filter")},

	{Section: Clock, Key: "synchronized", Kind: Warn, good: "true", Why: "logs and certificates of the nodes disagree about the time", mend: mendClock},
	{Section: Clock, Key: "offset", Kind: Warn, Unit: "ms", compare: atMost, fine: 100, Why: "logs and certificates of the nodes disagree about the time", mend: mendClock},
	{Section: Clock, Key: "time", Kind: Warn, Why: "logs and certificates of the nodes disagree about the time", mend: mendClock},
	{Section: Clock, Key: "zone", Kind: Warn, Why: "times in logs differ by hours", mend: mendZone},
	{Section: Clock, Key: "clocksource", Kind: Warn, Why: "reading the time is slow with some sources", mend: mendClockSource},

	{Section: GPU, Key: "count", Kind: Must, Why: "a rank finds no GPU"},
	{Section: GPU, Key: "models", Kind: Warn, Why: "the slowest GPU sets the pace of all"},
	{Section: GPU, Key: "memory", Kind: Warn, Why: "what fits the other GPUs may not fit this one"},
	{Section: GPU, Key: "driver", Kind: Must, Why: "NCCL and CUDA of unequal drivers fail or hang", mend: say("install the driver %s")},
	{Section: GPU, Key: "cuda", Kind: Warn, Why: "the driver runs programs of another CUDA", mend: say("install a driver for CUDA %s")},
	{Section: GPU, Key: "nccl", Kind: Must, Why: "unequal versions of NCCL do not talk to each other", mend: say("install NCCL %s")},
	{Section: GPU, Key: "cudnn", Kind: Warn, Why: "kernels differ", mend: say("install cuDNN %s")},
	{Section: GPU, Key: "peermem", Kind: Warn, Why: "GPUs and network adapters cannot share memory", mend: say("modprobe nvidia-peermem")},

	{Section: Python, Key: "version", Kind: Must, Why: "pickles and packages depend on it", mend: mendPython},
	{Section: Python, Key: "implementation", Kind: Must, Why: "packages with C code depend on it", mend: mendPython},
	{Section: Python, Key: "kind", Kind: Told},
	{Section: Packages, Key: "pip", Kind: Told},
	{Section: Packages, Key: "setuptools", Kind: Warn, whole: true, Why: "builds of packages differ", mend: mendPackage},
	{Section: Packages, Key: "wheel", Kind: Told},
	{Section: Packages, Key: "uv", Kind: Told},
	{Section: Packages, Key: "conda", Kind: Told},
	{Section: Packages, Key: "*", Kind: Must, whole: true, Why: "the ranks run different code", mend: mendPackage},

	{Section: Variables, Key: "*_SOCKET_IFNAME", Kind: Warn, whole: true, Why: "interfaces have other names, or this node uses another one", mend: mendVariable},
	{Section: Variables, Key: "COHORT_INTERFACE", Kind: Warn, whole: true, Why: "interfaces have other names, or this node uses another one", mend: mendVariable},
	{Section: Variables, Key: "CUDA_VISIBLE_DEVICES", Kind: Warn, whole: true, Why: "the ranks of this node see other GPUs", mend: mendVariable},
	{Section: Variables, Key: "LANG", Kind: Warn, whole: true, Why: "programs read and sort texts in another way", mend: mendVariable},
	{Section: Variables, Key: "LC_*", Kind: Warn, whole: true, Why: "programs read and sort texts in another way", mend: mendVariable},
	{Section: Variables, Key: "TZ", Kind: Warn, whole: true, Why: "times in logs differ by hours", mend: mendVariable},
	{Section: Variables, Key: "*_proxy", Kind: Warn, whole: true, Why: "this node reaches servers in another way", mend: mendVariable},
	{Section: Variables, Key: "*_PROXY", Kind: Warn, whole: true, Why: "this node reaches servers in another way", mend: mendVariable},
	{Section: Variables, Key: "HF_*", Kind: Warn, whole: true, Why: "this node reads models from another place", mend: mendVariable},
	{Section: Variables, Key: "COHORT_DEBUG", Kind: Told},
	{Section: Variables, Key: "COHORT_NUM_THREADS", Kind: Warn, whole: true, Why: "ranks compute with another number of threads", mend: mendVariable},
	{Section: Variables, Key: "*_THREADS", Kind: Warn, whole: true, Why: "ranks compute with another number of threads", mend: mendVariable},
	{Section: Variables, Key: "*_DEBUG*", Kind: Warn, whole: true, Why: "this node prints and checks other things", mend: mendVariable},
	{Section: Variables, Key: "GO*", Kind: Warn, whole: true, Why: "Go's runtime uses other memory, cores or instructions", mend: mendVariable},
	{Section: Variables, Key: "LD_*", Kind: Warn, whole: true, Why: "programs load other libraries", mend: mendVariable},
	{Section: Variables, Key: "MALLOC_*", Kind: Warn, whole: true, Why: "programs use more memory", mend: mendVariable},
	{Section: Variables, Key: "PYTHONPATH", Kind: Warn, whole: true, Why: "Python imports other code", mend: mendVariable},
	{Section: Variables, Key: "PYTHONHASHSEED", Kind: Must, whole: true, Why: "the order of sets differs between ranks", mend: mendVariable},
	{Section: Variables, Key: "PYTHON*", Kind: Warn, whole: true, Why: "Python works in another way", mend: mendVariable},
	{Section: Variables, Key: "TOKENIZERS_*", Kind: Warn, whole: true, Why: "tokenizers use another number of threads", mend: mendVariable},
	{Section: Variables, Key: "*", Kind: Must, whole: true, Why: "libraries behave otherwise on this node", mend: mendVariable},

	{Section: Run, Key: "setting.*", Kind: Must, whole: true, Why: "the ranks train with other settings", mend: mendSetting},
	{Section: Run, Key: "option.*", Kind: Must, Why: "the ranks train with other options", mend: mendOption},
	{Section: Run, Key: "tensor.*", Kind: Must, whole: true, Why: "the ranks train other models", mend: say("build the same model on all ranks")},
	{Section: Run, Key: "model", Kind: Must, Why: "the ranks train other models", mend: say("build the same model on all ranks")},
	{Section: Run, Key: "weights", Kind: Must, whole: true, Why: "the ranks begin with other weights", mend: mendWeights},
	{Section: Run, Key: "data.*", Kind: Must, whole: true, Why: "the ranks train on other data", mend: mendData},
	{Section: Run, Key: "data", Kind: Must, compare: list, Why: "the ranks train on other samples, or in another order", mend: say("give all ranks the same data and settings")},
	{Section: Run, Key: "samples", Kind: Must, Why: "the ranks train on other data", mend: say("give all ranks the same data")},
	{Section: Run, Key: "position", Kind: Must, Why: "the ranks go on from another place in the data", mend: say("give all ranks the same checkpoint")},
}
