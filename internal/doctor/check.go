// SPDX-License-Identifier: Apache-2.0

package doctor

// Check is something that is looked at.
type Check struct {
	Name string
	What string // what is looked at, and what is a finding
	Why  string // why it matters
	Mend string // how to mend it; findings have the exact command
	// one judges one host.
	one func(f *Facts) []Finding
}

// Checks returns the table of checks.
func Checks() []Check {
	return []Check{
		{Name: "loopback", What: "A connection from the host to itself by 127.0.0.1.", Why: "The ranks of a host, and the launcher, meet there.",
			Mend: "`ip link set dev lo up`, or let the firewall accept the interface lo.", one: judgeLoopback},
		{Name: "localhost", What: "The name localhost leads to 127.0.0.1 or ::1.", Why: "Jobs on one host meet at localhost.",
			Mend: "Add the line `127.0.0.1 localhost` to the file of host names.", one: judgeLocalhost},
		{Name: "own name", What: "The host's own name leads to an address, and in less than a second.",
			Why:  "PyTorch's ranks (Gloo) and MPI announce the address of the host's name. A loopback address such as 127.0.1.1 leads every other host to itself.",
			Mend: "Give the host its own address in the file of host names.", one: judgeOwnName},
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
