// SPDX-License-Identifier: Apache-2.0

// Package launch starts the ranks of a job as processes of this machine,
// watches them, and leaves nothing behind when they end.
//
// [Run] launches any program: a binary, a Go package directory (built first), a
// Python script. [Spawn] gives a program rank processes of its own from inside
// its main function. Both are the same agent: it picks a port for rank 0,
// makes the job's token, starts the workers with the environment that torchrun
// gives (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the rest),
// copies their output line by line behind a prefix, and passes signals on.
//
// When a worker fails, the others are told (package agentpipe), have a second
// to end with errors of their own, and are then ended: SIGTERM, 30 seconds
// later SIGKILL. A SIGINT, SIGTERM, SIGHUP or SIGQUIT that the agent gets goes
// to the workers with the same grace (a SIGINT after a look, of a second at most, at
// whether ranks wait for each other, which is printed then); a second one, if it
// is SIGINT, kills at once. The result is nil only if every rank ended with code 0
// and nobody stopped the job; else it is an [*Error], whose Report says which rank
// failed first and how, with the last lines of its standard error. With
// [Config.Survivors] the others are told of a failure and go on instead.
//
// A job is made of attempts. [Config].MaxRestarts starts all workers again after a
// failure, at another port, so that no attempt meets what an earlier one has left. A
// failure that would happen again ([Final]) ends the job at once.
// Run is [Open], which checks everything and starts nothing, then an [Attempt]
// after the other by [Host.Run], then [Host.Close]; [Config].Nodes takes the place
// of the loop where other machines have a say in it.
//
// Output and errors. [Logs] writes torchrun's tree of files. Each worker finds in
// TORCHELASTIC_ERROR_FILE where to say what it ends with; the functions that Spawn
// runs do ([Record] is for others), and the report says it.
//
// No process stays. Every worker leads a session of its own. What workers
// started and left behind is ended after them (SIGTERM, a second later
// SIGKILL), on Linux wherever it has gone, elsewhere within the process group. If
// the agent itself is killed, the kernel kills the workers (Linux) and a guard,
// a small shell process beside the agent, kills what is below them. Where this process may
// make a cgroup (v2), workers are born into one, from which nothing escapes; elsewhere
// a process that has both left its session and cleared its environment survives
// a kill -9 of the agent. Shared memory of ranks has no name, and their sockets
// are abstract: both go with the last process that has them (Linux).
//
// The ranks of a job that failed leave the dumps of their flight recorders in a
// directory cohort-… of os.TempDir, which the report names. A later job of the same
// user removes it after a week; COHORT_RECORDER_DIR names another one, which stays.
//
// Secrets. The token goes to the workers in their environment, never in
// arguments. Where a rank prints it, or much of it, the agent covers it with asterisks, in
// output and reports (not in what [Config].PassRank0 lets through). Control characters that
// ranks print, but for tabs and the ends of lines, are shown as ^[ and the like, on the
// terminal and in reports: no rank commands a terminal that is not its own. [KeepSecrets] is for
// a process that is a launcher only.
//
// Caveats. An agent catches signals and, on Linux, makes its process the one
// that orphans fall to, for as long as Run or Spawn is running: these belong to
// the process, so run one agent at a time in it. Workers are killed when the
// thread that started them ends; Run keeps its goroutine on its thread.
package launch
