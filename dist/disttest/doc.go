// SPDX-License-Identifier: Apache-2.0

// Package disttest is a cluster inside `go test`: ranks on a network of its own, with latencies, rates
// and faults, in virtual time.
//
//	func TestTraining(t *testing.T) {
//		res := disttest.Run(t, 4, train,
//			disttest.WithFaults(disttest.Kill(2).AtCall(2, 100)))
//		var failed *dist.RankError
//		if !errors.As(res.Ranks[0].Err, &failed) || failed.Rank != 2 {
//			t.Errorf("rank 0 ended with %v, want an error that names rank 2", res.Ranks[0].Err)
//		}
//	}
//
// [Run] calls a main function for each rank, as [dist.Main] does in a process. The ranks find each
// other, form a group over connections, and leave it at the end. The code that moves the data, watches
// the ranks and makes the errors is the same as between hosts; only the wires belong to this package.
// The function is your training loop, or any other program that uses package dist.
//
// # Time
//
// A run is in a bubble of [testing/synctest]: time stands still while any goroutine computes, and
// jumps when all wait. A time-out of half an hour takes no longer than to notice that all goroutines
// wait. A transfer of 125 MB over a line of 1 Gbit/s takes a second of virtual time, and as much real
// time as copying the data. Computing takes no virtual time. Where a step is to take 30 ms, let it call
// time.Sleep.
//
// Inside the bubble main must wait only for what is inside it: timers, channels made there, and package
// dist, but no sockets and no processes. It must not wait for a lock whose holder waits for time to
// pass, as in a call of dist: time stands still while a goroutine waits for a lock, so both would wait
// for ever. The threads of the tensor library are outside the bubble, and a goroutine that waits for
// them counts as computing. No goroutine in the bubble may call synctest.Wait during the run, for the
// network does.
//
// [Simulate] runs where it is called: in virtual time inside a bubble of yours, in real time outside of
// one.
//
// # Faults
//
// A [Fault] happens at a time, or when a rank begins its k-th operation, or when main asks for it
// ([Inject]):
//
//	Kill(r)          the process ends: the system closes its connections
//	Stop(r)          the process stops, as by SIGSTOP: silence
//	Cut(a, b)        nothing passes between two ranks, and neither is told
//	CutOneWay(a, b)  nothing passes from a to b
//	Isolate(r…)      nothing passes between these ranks and all others
//	Slow(a, b, l)    the line between two ranks gets other properties
//
// All but Kill may last for a limited time (For). A cut line loses nothing for good: what was sent comes
// when the line is mended, as TCP repeats it, unless a rank has given up before.
//
// # Repeatable runs
//
// What is random (the jitter of lines, the faults of [WithRandomFaults]) comes from a seed, which Run
// prints. A run with the same seed and the same program goes the same way: calls begin and end at the
// same nanosecond, with the same errors ([Result.Trace]). The program must be repeatable itself: main
// must not draw from unseeded generators, nor race goroutines of its own.
//
// # Caveats
//
// Ranks share the process: package variables, the threads of the tensor library, its memory. A rank that
// is killed or stopped is so for the others, and at its calls of package dist. What main does between
// them goes on, and so do its timers: a killed rank should return when its context ends or a call fails.
// The store that [dist.Group.Store] returns is not on the network, and no fault reaches it. All ranks are
// joined by connections; shared memory between ranks of a node is not simulated.
package disttest
