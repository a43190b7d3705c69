// SPDX-License-Identifier: Apache-2.0

package doctor

import "regexp"

// Trouble is a known cause of failed runs.
type Trouble struct {
	Name string
	Says string // what the logs say, in words
	Why  string // what has happened
	Mend string
	// Lines are patterns of lines that show it. A line that fits one of But does not count.
	Lines []string
	But   []string
	// Examples are lines that show it, as programs write them.
	Examples []string
	// Later says that the trouble often follows from another one: it counts only if no
	// other trouble is found.
	Later bool
}

// Troubles returns the table of known troubles, causes before what follows from them.
func Troubles() []Trouble {
	return []Trouble{
		{Name: "GPU out of memory", Says: "CUDA out of memory", Why: "a GPU had no memory for a tensor",
			Mend:     "use a smaller batch and --accumulate; bfloat16; sharding (FSDP); checkpointing of activations; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if much is reserved but not allocated",
			Lines:    []string{`CUDA out of memory`, `torch\.(cuda\.)?OutOfMemoryError`, `CUDA_ERROR_OUT_OF_MEMORY`, `cudaErrorMemoryAllocation`, `CUBLAS_STATUS_ALLOC_FAILED`},
			Examples: []string{"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity; 76.9 GiB already allocated)"}},
		{Name: "out of memory", Says: "the kernel killed a rank, or memory was refused", Why: "the ranks of a host needed more memory than the host or its cgroup has",
			Mend:  "use a smaller batch with --accumulate, fewer loader workers, or shard the model with --fsdp; or raise the limit of the container",
			Lines: []string{`(?i)out of memory`, `(?i)oom[- _]?kill`, `Killed process \d+`, `exit ?code:? ?-9\b`, `signal 9 \(SIGKILL\)`, `was killed by signal: killed`, `cannot allocate memory`, `Cannot allocate memory`, `std::bad_alloc`, `MemoryError`, `killed by the kernel.*memory`, `DefaultCPUAllocator: can't allocate memory`},
			But:   []string{`CUDA`, `HIP`},
			Examples: []string{"RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)",
				"fatal error: runtime: out of memory", "Signal 9 (SIGKILL) received by PID 4711: exitcode: -9", "Memory cgroup out of memory: Killed process 4711 (python3)"}},
		{Name: "shared memory full", Says: "bus error, or insufficient shared memory", Why: "/dev/shm was full: data loaders and NCCL put batches and buffers there",
			Mend:     "mount -o remount,size=2G /dev/shm; for a container --shm-size 2g or --ipc=host; for Kubernetes an emptyDir with medium Memory at /dev/shm",
			Lines:    []string{`(?i)bus error`, `SIGBUS`, `insufficient shared memory`, `unable to (open|write to|mmap) .*shared memory`, `/dev/shm.*No space left on device`, `No space left on device.*/dev/shm`},
			Examples: []string{"ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).", "RuntimeError: unable to write to file </torch_4711_1>: unable to mmap 1024 bytes from shared memory: No space left on device (28) /dev/shm"}},
		{Name: "disk full", Says: "no space left on device, or a quota is exceeded", Why: "a checkpoint, log or temporary file found no room",
			Mend:     "df -h; remove old checkpoints with cohort ckpt prune, keep fewer (--keep), or save elsewhere",
			Lines:    []string{`(?i)no space left on device`, `(?i)disk quota exceeded`, `ENOSPC`, `PytorchStreamWriter failed writing file`},
			But:      []string{`/dev/shm`, `shared memory`},
			Examples: []string{"OSError: [Errno 28] No space left on device", "write out/step-100/model.safetensors: no space left on device", "RuntimeError: [enforce fail at inline_container.cc:471] . PytorchStreamWriter failed writing file data/47: file write failed"}},
		{Name: "too many open files", Says: "too many open files", Why: "a process reached its limit of open files",
			Mend:     "ulimit -n 65536; for PyTorch's loaders torch.multiprocessing.set_sharing_strategy('file_system')",
			Lines:    []string{`(?i)too many open files`, `EMFILE`, `received 0 items of ancdata`},
			Examples: []string{"accept tcp 10.0.0.1:4711: accept4: too many open files", "RuntimeError: received 0 items of ancdata"}},
		{Name: "too many threads", Says: "a thread or process could not be made", Why: "the user or cgroup reached its limit of processes",
			Mend:     "ulimit -u 65536, a larger pids limit of the container, fewer loader workers, OMP_NUM_THREADS=1",
			Lines:    []string{`(?i)resource temporarily unavailable.*(fork|thread|pthread)`, `(?i)(fork|thread|pthread_create).*resource temporarily unavailable`, `can't start new thread`, `failed to create new OS thread`, `pthread_create failed`},
			Examples: []string{"runtime: failed to create new OS thread (have 12 already; errno=11)", "RuntimeError: can't start new thread", "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 64: Resource temporarily unavailable"}},
		{Name: "port in use", Says: "the port of rank 0 is in use", Why: "another job, or a process that an earlier one has left, listens at the port",
			Mend:     "ss -ltnp to see who has it; another --master-port, or --standalone for a job on one host",
			Lines:    []string{`(?i)address already in use`, `EADDRINUSE`, `port in use`},
			Examples: []string{"[E socket.cpp:860] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", "cohort: launch: port in use: 127.0.0.1:29500: listen at another port"}},
		{Name: "name not found", Says: "a host name leads nowhere", Why: "a host does not know the name of the master",
			Mend:     "cohort doctor --hosts on the job's hosts; give all hosts the same file of host names, or MASTER_ADDR as an address",
			Lines:    []string{`(?i)name or service not known`, `(?i)temporary failure in name resolution`, `no such host`, `getaddrinfo`, `nodename nor servname`},
			Examples: []string{"lookup node7 on 10.0.0.2:53: no such host", "[W socket.cpp:464] [c10d] The client socket has failed to connect: getaddrinfo: Name or service not known"}},
		{Name: "interface missing", Says: "an interface that a variable names does not exist", Why: "NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME or COHORT_INTERFACE has the name of another host's interface",
			Mend:     "ip -br addr on each host; correct the variable, or unset it",
			Lines:    []string{`(?i)no socket interface found`, `Unable to find address for: `, `(?i)no network interface`, `Bootstrap : no socket interface`},
			Examples: []string{"misc/socket.cc:538 NCCL WARN Bootstrap : no socket interface found", "RuntimeError: [enforce fail at tcp/device.cc:206] ifa != nullptr. Unable to find address for: ib0"}},
		{Name: "reduction not finished", Says: "expected to have finished reduction in the prior iteration", Why: "a pass did not use all parameters, so that the gradients of some were never reduced",
			Mend:     "let the loss depend on all parameters, or give PyTorch find_unused_parameters=True (DDP of Cohort needs no setting); look whether a rank skips a layer",
			Lines:    []string{`[Ee]xpected to have finished reduction in the prior iteration`, `(?i)parameters? .*(was|were) not used in (the )?(loss|forward|backward)`, `marked as ready twice`},
			Examples: []string{"RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that your module has parameters that were not used in producing loss."}},
		{Name: "ranks call different collectives", Says: "ranks called different collectives, or one skipped a call", Why: "a branch of the program depends on the rank, or ranks have unequal numbers of batches",
			Mend:     "make all ranks call the same collectives in the same order; for unequal data use Join or drop the last batch; cohort recorder DIR shows the call of each rank",
			Lines:    []string{`(?i)collective mismatch`, `Detected mismatch between collectives`, `called different collectives`, `(?i)has not called it; its last was`, `mismatched call`},
			Examples: []string{"RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE)", "  rank 2 (host h, pid 4711): has not called it; its last was all_reduce 304, ended 2.99s before its dump"}},
		{Name: "values are not finite", Says: "the loss or a gradient is NaN or infinite", Why: "gradients exploded: learning rate, number format or a bad sample",
			Mend:     "clip gradients (--clip 1), warm up longer, lower the learning rate; float16 needs a scaled loss, bfloat16 does not; look at the batch of that step",
			Lines:    []string{`(?i)\b(train_?)?loss"?\s*[:= ]\s*"?-?(nan|inf)\b`, `(?i)gradients? .*(not finite|nan\b|infinite)`, `(?i)loss is (nan|not finite|inf)`, `Function '.*' returned nan values`, `(?i)loss scale (reached|is at) .*minimum`},
			Examples: []string{"step 120  loss nan  lr 3e-4", `{"step":120,"loss":NaN}`, "RuntimeError: Function 'LogSoftmaxBackward0' returned nan values in its 0th output."}},
		{Name: "checkpoint damaged", Says: "a checkpoint cannot be read", Why: "a file is not whole, as when a save was cut off, or is of another format",
			Mend:     "cohort ckpt verify DIR; go on from the checkpoint before it",
			Lines:    []string{`PytorchStreamReader failed`, `(?i)checksum (mismatch|does not match|is wrong)`, `SafetensorError`, `(?i)invalid (header|load key)`, `(?i)checkpoint .*(damaged|corrupt|incomplete)`, `failed finding central directory`},
			Examples: []string{"RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"}},
		{Name: "other shapes in a checkpoint", Says: "a parameter has another shape than in the checkpoint, or is missing", Why: "the checkpoint is of a model with other settings",
			Mend:     "give the settings with which it was saved; cohort ckpt show DIR lists names and shapes",
			Lines:    []string{`size mismatch for `, `Missing key\(s\) in state_dict`, `Unexpected key\(s\) in state_dict`},
			Examples: []string{"size mismatch for lm_head.weight: copying a param with shape torch.Size([50257, 768]) from checkpoint, the shape in current model is torch.Size([50304, 768])."}},
		{Name: "driver and library differ", Says: "driver/library version mismatch, or the driver is too old", Why: "NVIDIA's driver was updated under a running kernel module, or CUDA is newer than the driver",
			Mend:     "start the host again, or load the modules again: rmmod nvidia_uvm nvidia; install a driver for that CUDA",
			Lines:    []string{`(?i)driver/library version mismatch`, `(?i)driver version is insufficient`, `forward compatibility was attempted`, `no kernel image is available for execution`},
			Examples: []string{"Failed to initialize NVML: Driver/library version mismatch", "RuntimeError: CUDA error: no kernel image is available for execution on the device"}},
		{Name: "GPU failed", Says: "an Xid error, an ECC error, or a GPU that has fallen off the bus", Why: "the GPU or its memory is damaged, or too hot",
			Mend:     "nvidia-smi -q -d ECC,TEMPERATURE; dmesg | grep Xid; take the host out of the job",
			Lines:    []string{`NVRM: Xid`, `(?i)uncorrectable ECC error`, `fallen off the bus`, `unspecified launch failure`},
			Examples: []string{"NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.", "RuntimeError: CUDA error: uncorrectable ECC error encountered"}},
		{Name: "wrong rank or world size", Says: "a variable such as RANK is missing, or two processes have the same rank", Why: "the program was started without a launcher, or nodes were given other numbers",
			Mend:     "start it by cohort run; give each node its own --node-rank and all the same --nnodes",
			Lines:    []string{`environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected`, `(?i)two processes have the (same )?rank`, `(?i)rank \d+ .*(already|twice)`, `rank >= world_size`},
			Examples: []string{"ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set"}},
		{Name: "wrong token", Says: "the job's token was not proven", Why: "the launchers or ranks of the job have different tokens",
			Mend:     "cohort token --file token.txt once, copy the file to all hosts, and give --token-file token.txt",
			Lines:    []string{`token was not proven`, `wrong token`},
			Examples: []string{"cohort: turned away a connection to 10.0.0.1:29500 from 10.0.0.2: the job's token was not proven"}},
		{Name: "module missing", Says: "a Python module or shared library is missing", Why: "the environment of this host lacks a package that others have",
			Mend:     "cohort env diff of both hosts, and cohort env create on this one",
			Lines:    []string{`ModuleNotFoundError`, `ImportError`, `cannot open shared object file`, `version .GLIBC_[0-9.]+. not found`},
			Examples: []string{"ModuleNotFoundError: No module named 'torch'", "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"}},
		{Name: "permission", Says: "permission denied, or a read-only file system", Why: "a directory or file of the run belongs to another user, or its disk is mounted for reading",
			Mend:     "ls -ld of the named path; choose another --out or TMPDIR",
			Lines:    []string{`(?i)permission denied`, `(?i)read-only file system`, `EACCES`},
			But:      []string{`publickey`},
			Examples: []string{"open out/step-1: permission denied", "OSError: [Errno 30] Read-only file system: '/data/out'"}},
		{Name: "host refused a login", Says: "ssh refused the login", Why: "ssh has no key for the host, or the host is not known",
			Mend:     "ssh-copy-id HOST; ssh HOST true must work without a question",
			Lines:    []string{`Permission denied \(publickey`, `Host key verification failed`},
			Examples: []string{"user@node3: Permission denied (publickey,password)."}},
		{Name: "stopped by the scheduler", Says: "a time limit, a pre-emption or a cancelled job", Why: "the scheduler ended the job, or took the machine",
			Mend:     "a longer --time; requeue: the same command goes on from the last checkpoint",
			Lines:    []string{`DUE TO TIME LIMIT`, `DUE TO PREEMPTION`, `(?i)slurmstepd: error: .*CANCELLED`, `(?i)notice that this machine is about to go`},
			Examples: []string{"slurmstepd: error: *** JOB 4711 ON node3 CANCELLED AT 2026-11-26T16:00:00 DUE TO TIME LIMIT ***"}},
		{Name: "crash in a program", Says: "a segmentation fault, an illegal instruction, or a panic", Why: "a library crashed. An illegal instruction means that it was built for another processor",
			Mend:     "run that rank alone with the same data; for an illegal instruction build for the oldest processor of the job, and compare hosts by cohort doctor --hosts",
			Lines:    []string{`(?i)segmentation fault`, `SIGSEGV`, `(?i)illegal instruction`, `SIGILL`},
			Examples: []string{"Fatal Python error: Segmentation fault", "SIGILL: illegal instruction"}},
		{Name: "network", Says: "a connection was refused, reset, or timed out", Why: "a rank could not reach another one: firewall, interface, address, or the other rank had ended",
			Mend: "cohort doctor --hosts with the job's hosts; on one host look which rank ended first: the report of cohort run names it",
			Lines: []string{`(?i)connection (refused|reset|timed out)`, `(?i)no route to host`, `(?i)network is unreachable`, `(?i)broken pipe`, `NCCL WARN .*(timeout|timed out|Call to (connect|recv|send))`,
				`ncclSystemError`, `ncclRemoteError`, `Watchdog caught collective operation timeout`, `DistNetworkError`, `DistStoreError`, `i/o timeout`, `Connection closed by peer`},
			Examples: []string{"dial tcp 10.0.0.2:4711: connect: no route to host", "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=305, OpType=ALLREDUCE) ran for 600029 milliseconds before timing out.",
				"RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.0.0.2]:4711"}, Later: true},
	}
}

// compile makes expressions of patterns.
func compile(patterns []string) (out []*regexp.Regexp) {
	for _, p := range patterns {
		out = append(out, regexp.MustCompile(p))
	}
	return out
}
