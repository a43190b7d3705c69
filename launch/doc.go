// SPDX-License-Identifier: Apache-2.0

// Package launch starts the ranks of a job as processes of this machine, watches them,
// and leaves nothing behind when they end.
//
// # The picture
//
// [Run] launches any program: a binary, a Go package directory (built first), or a Python
// script. [Spawn] starts rank processes from inside a program's own main function. Both
// run the same agent: the launcher's part on this host. The ranks are its workers. The
// agent picks a port for rank 0, makes the job's token, and starts the workers with the
// environment that torchrun gives (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
// and the rest). It copies their output line by line behind a prefix, and passes signals on.
//
// A job is made of attempts. After a failure, [Config].MaxRestarts starts all workers
// again, at another port, so that no attempt meets what an earlier one has left. A failure
// that would happen again ([Final]) ends the job at once. Run calls [Open], which checks
// everything and starts no rank; then [Host.Run] for one [Attempt] after the other; then
// [Host.Close]. For a job on several machines, [Config].Nodes makes the attempts
// (package launch/rendezvous).
//
// # The end of a job
//
// When a worker fails, the agent tells the others. They have one second to end with errors
// of their own. Then they get SIGTERM, and 30 seconds later SIGKILL. With
// [Config].Survivors the others go on instead.
//
// The agent passes SIGINT, SIGTERM, SIGHUP and SIGQUIT on to the workers, with the same
// grace period. Before a SIGINT it looks, for one second at most, where ranks wait for each
// other, and prints that. A second signal, if it is SIGINT, kills at once.
//
// The result is nil only if every rank ended with code 0 and nobody stopped the job.
// Otherwise it is an [*Error]. Its Report says which rank failed first and how, with the
// last lines of that rank's standard error.
//
// # Who is named
//
// Often several ranks fail, and one of them is the cause. This package decides whose failure
// the report puts first (culprit.go), also by what the flight recorders say
// (dist/flightlog), and prints the report (report.go).
// Where rank, host and PID of an error about a lost rank are filled in, and where to mend
// which of them, stands in dist/fault, section "How a lost rank is named".
//
// # Files
//
//	what to run         config.go, options.go (of Spawn), binding*.go (to processors), port.go
//	Run, Spawn          launch.go, spawn.go, host.go, attempt.go, restart.go (and Final)
//	the program         program.go, build.go (go build)
//	one attempt         agent.go (the loop), supervisor.go (which signal when), worker.go (start
//	                    and tell a process), environment.go (all variables of a worker)
//	output              relay.go (prefixes), logs.go (files), tail.go (last lines), redact.go and
//	                    keepsecrets*.go (the token)
//	a failure           failure.go, errorfile.go, culprit.go, report.go, recorder.go (flight
//	                    recorders), oom*.go (memory that ran out), limits.go (ulimit)
//	no process stays    orphans*.go, cgroup*.go, guard.go (if the agent is killed), process*.go (/proc)
//	signals             signals.go, jobcontrol*.go (Ctrl-Z), terminal*.go, notice*.go (preemption)
//	PyTorch's store     agentstore.go
//
// # No process stays
//
// Every worker leads a session of its own. When the workers have ended, the agent ends what
// they started and left behind: by SIGTERM, and a second later by SIGKILL. On Linux it finds
// such processes wherever they have gone, elsewhere within the process group. If the agent
// itself is killed, the kernel kills the workers (Linux), and a guard kills what is below
// them: a small shell process beside the agent. Where this process may make a cgroup (v2),
// workers are born into one, from which nothing escapes. Elsewhere, one kind of process
// survives a kill -9 of the agent: one that has left its session and cleared its environment.
// The shared memory of ranks has no name, and their sockets are abstract. Both go with the
// last process that has them (Linux).
//
// # Files that a job leaves
//
// [Logs] writes torchrun's tree of files. Each worker finds in TORCHELASTIC_ERROR_FILE where
// to write the error that it ends with, and the report quotes it. Functions that Spawn runs
// write it by themselves; [Record] is for other programs.
//
// The ranks of a failed job leave the dumps of their flight recorders in a directory
// cohort-… of os.TempDir. The report names it. A later job of the same user removes it after
// a week. COHORT_RECORDER_DIR names another directory, which stays.
//
// # Secrets
//
// The token goes to the workers in their environment, never in arguments. Where a rank
// prints the token, or much of it, the agent covers it with asterisks, in output and in
// reports. It cannot do so in what [Config].PassRank0 lets through. Control characters that
// ranks print are shown as ^[ and the like, but for tabs and line ends, on the terminal and
// in reports: no rank commands a terminal that is not its own. [KeepSecrets] is for a process
// that is a launcher only.
//
// # Caveats
//
// While Run or Spawn is running, the agent catches signals and, on Linux, adopts orphaned
// descendants of its process. Both belong to the whole process: run one agent at a time in
// it. Workers are killed when the thread that started them ends; Run keeps its goroutine on
// its thread.
package launch
