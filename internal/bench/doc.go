// SPDX-License-Identifier: Apache-2.0

// Package bench measures Cohort on the user's own machine. It has the cases of
// `cohort bench`: a function for each command, such as [Step] or [Collectives],
// with a struct of options. A case returns [Result]s. A Result prints as one JSON
// object in a line, so that a script can compare runs, or as a line for people.
//
// The models and sizes are those of PyTorch scripts in tools that do the same
// work, so that both can run side by side.
//
// A file has the name of its command: step.go, ddp.go, shard.go, collectives.go with
// collective_ops.go (one function for each operation) and collectives_late.go,
// rpc.go and so on. The models of cohort bench step are in step.go and step_cnn.go.
// Shared parts are result.go (results and statistics), process_usage.go (processor
// time, memory and garbage collection of the process) and raw_socket.go (the speed
// of a bare connection).
package bench
