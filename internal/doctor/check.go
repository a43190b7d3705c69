// SPDX-License-Identifier: Apache-2.0

package doctor

// Check is something that is looked at.
type Check struct {
	Name string
	What string // what is looked at, and what is a finding
	Why  string // why it matters
	Mend string // how to mend it; findings have the exact command
	// one judges one host, hosts several. A check has one of them or both.
	one   func(f *Facts) []Finding
	hosts func(s *Survey) []Finding
}

// Checks returns the table of checks.
func Checks() []Check {
	return []Check{
		{Name: "loopback", What: "A connection from the host to itself by 127.0.0.1.", Why: "The ranks of a host, and the launcher, meet there.",
			Mend: "`ip link set dev lo up`, or let the firewall accept the interface lo.", one: judgeLoopback},
		{Name: "localhost", What: "The name localhost leads to 127.0.0.1 or ::1.", Why: "Jobs on one host meet at localhost.",
			Mend: "Add the line `127.0.0.1 localhost` to the file of host names.", one: judgeLocalhost},
		{Name: "own name", What: "The host's own name leads to an address, and in less than a second. Between hosts it leads to no loopback address.",
			Why:  "PyTorch's ranks (Gloo) and MPI announce the address of the host's name. A loopback address such as 127.0.1.1 leads every other host to itself.",
			Mend: "Give the host its own address in the file of host names.", one: judgeOwnName, hosts: judgeOwnNames},
		{Name: "master port", What: "The port of rank 0 is free.", Why: "The ranks meet at this port.", Mend: "`--master-port` with another port, or end the program that has it.", one: judgePort},
		{Name: "port range", What: "The system has at least 4,096 ports for connections.", Why: "Each pair of ranks needs ports of this range.", Mend: "`sysctl -w net.ipv4.ip_local_port_range='32768 60999'`", one: judgePortRange},
		{Name: "interface variable", What: "Interfaces that variables name exist on this host.", Why: "Ranks that are bound to a missing interface cannot be reached.",
			Mend: "Correct the variable, or unset it.", one: judgeInterfaceVariables},
		{Name: "tcp buffers", What: "TCP buffers can grow to 1 MiB.", Why: "A connection over a network carries no more than a buffer in a round trip.",
			Mend: "`sysctl -w net.ipv4.tcp_rmem='4096 131072 6291456'`", one: judgeBuffers},
		{Name: "open files", What: "A process may open enough files for all connections of its rank.", Why: "A rank has a connection to each other rank, beside files and libraries.", Mend: "`ulimit -n 65536`", one: judgeOpenFiles},
		{Name: "processes", What: "The user, and the cgroup, may have enough threads for all ranks.", Why: "Each rank has several threads for each processor, and data loaders are processes.", Mend: "`ulimit -u 65536`, or a larger pids limit of the container", one: judgeProcesses},
		{Name: "address space", What: "No limit of address space below 4 GiB.", Why: "Go's runtime and CUDA reserve much address space when they start.", Mend: "`ulimit -v unlimited`", one: judgeAddressSpace},
		{Name: "file size", What: "No limit of file size below 16 GiB.", Why: "A larger file of a checkpoint fails.", Mend: "`ulimit -f unlimited`", one: judgeFileSize},
		{Name: "memory", What: "At least 512 MiB of memory are left for each rank.", Why: "The kernel kills ranks when memory is used up.", Mend: "Raise the limit of the cgroup or container, or start fewer ranks.", one: judgeMemory},
		{Name: "processors", What: "As many processors as ranks, and no more threads than processors, by affinity and by the quota of the cgroup.", Why: "Ranks that share a processor are slower than fewer ranks, and the others wait for them.",
			Mend: "Start fewer ranks, set `COHORT_NUM_THREADS` and `OMP_NUM_THREADS`, or raise the quota.", one: judgeProcessors},
		{Name: "shared memory", What: "/dev/shm has at least 256 MiB free.", Why: "PyTorch's data loaders and NCCL put batches and buffers there. Containers often have 64 MiB, and then ranks end with a bus error.",
			Mend: "`mount -o remount,size=2G /dev/shm`; for a container `--shm-size 2g`", one: judgeSharedMemory},
		{Name: "disk space", What: "The directories for checkpoints and temporary files have 1 GiB and some inodes left.", Why: "Checkpoints and logs fail when the disk is full.", Mend: "Remove files, or choose another directory with `--out` or `TMPDIR`.", one: judgeSpace},
		{Name: "disk writes", What: "Files can be written there, and a small write is durable within half a second.", Why: "A checkpoint waits until it is durable.", Mend: "Mount the disk for writing, or choose another directory.", one: judgeWrites},
		{Name: "programs in tmp", What: "Programs can run from the directory for temporary files.", Why: "cohort run builds Go packages there, and PyTorch compiles kernels there.", Mend: "`mount -o remount,exec DIR`, or another `TMPDIR`", one: judgeNoExec},
		{Name: "gpus", What: "nvidia-smi answers, GPUs that variables name exist, and each GPU has most of its memory free.", Why: "A rank without its GPU ends, or computes on the processor.", Mend: "Load the driver again after an update, correct the variable, or end the other program.", one: judgeGPUs},

		{Name: "interfaces", What: "Between hosts, an interface other than lo is up and has an address.", Why: "Other hosts cannot reach a host without one.", Mend: "`ip link set dev NAME up`", hosts: judgeInterfaces},
		{Name: "master address", What: "MASTER_ADDR is no loopback address if there are several hosts.", Why: "Each host then waits for itself.", Mend: "`export MASTER_ADDR=` and the address of the first host", hosts: judgeMasterAddr},
		{Name: "hosts", What: "Each host answers, has the same version of this program, and is named once.", Why: "A job starts when all of its hosts have come.", Mend: "Findings say what the host has answered.", hosts: judgeAnswers},
		{Name: "names", What: "The name of each host leads to that host, on all hosts.", Why: "The ranks look for rank 0 by a name.", Mend: "Give all hosts the same file of host names, or use addresses.", hosts: judgeNames},
		{Name: "reachability", What: "Each host can connect to each other host, in both directions, and the right host answers.", Why: "Each rank connects to others at ports that the system chooses.",
			Mend: "Accept connections of these hosts in the firewall.", hosts: judgeReach},
		{Name: "large packets", What: "Large messages arrive where small ones do.", Why: "Where a switch has a smaller MTU than the hosts, small messages arrive and large ones vanish: jobs start and hang in their first collective.",
			Mend: "`ip link set dev NAME mtu 1500`", hosts: judgeLarge},
		{Name: "rate", What: "No pair of hosts has less than 200 Mbit/s, or less than 1 Gbit/s and a quarter of the usual rate.", Why: "The slowest link sets the pace of all ranks.", Mend: "Look at cable, port and other traffic of the named host.", hosts: judgeRates},
		{Name: "latency", What: "No pair of hosts has a round trip of more than 5 ms, if the others have less than a fifth of it.", Why: "Small collectives take several round trips.", Mend: "Put all hosts into the same network.", hosts: judgeLatency},
		{Name: "clocks", What: "The clocks of the hosts differ by less than half a second.", Why: "Certificates, leases and the order of log lines depend on the time.", Mend: "`chronyc makestep`", hosts: judgeClocks},
		{Name: "same directory", What: "A file that one host makes in the directory for checkpoints is seen by the others (with `--dir`).", Why: "A checkpoint of several hosts is one directory.", Mend: "Mount the same file system on all hosts.", hosts: judgeShared},
		{Name: "slow host", What: "No host computes at less than half of the usual rate.", Why: "All ranks wait for the slowest.", Mend: "Look for other programs, limits and temperature on the named host.", hosts: judgeSlowHosts},
		{Name: "differences", What: "Versions, limits, interfaces and settings of the kernel are equal, by the rules of `cohort env diff`.", Why: "What runs on one host fails or differs on another.", Mend: "Findings have the command for each difference.", hosts: judgeDifferences},
	}
}

// Judge returns the findings of one host.
func Judge(f *Facts) (out []Finding) {
	for _, c := range Checks() {
		if c.one != nil {
			out = append(out, c.complete(c.one(f))...)
		}
	}
	sortFindings(out)
	return out
}

// complete adds what findings have of their check.
func (c *Check) complete(found []Finding) []Finding {
	for i := range found {
		found[i].Check = c.Name
		if found[i].Why == "" {
			found[i].Why = c.Why
		}
	}
	return found
}
