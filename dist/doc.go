// SPDX-License-Identifier: Apache-2.0

// Package dist lets ranks talk: it forms groups of ranks and moves tensors
// between them.
//
// A [Group] is a value with a rank, a size and the operations of
// torch.distributed. Every rank of the group calls the same collectives in the
// same order with the same shapes. If a rank calls something else, every rank gets an
// error that says so ([MismatchError]). Ranks are processes that meet
// through their environment ([Init], under `cohort run` or torchrun's
// variables), or goroutines of one process ([Spawn]). The program is the
// same for both.
//
// # Operations
//
// Names and meanings are PyTorch's. Arguments are in PyTorch's order, destination
// first. Roots are ranks of the group.
//
//	torch.distributed          here
//	all_reduce                 Group.AllReduce
//	all_reduce_coalesced       Group.AllReduceCoalesced
//	reduce                     Group.Reduce
//	broadcast                  Group.Broadcast, Group.BroadcastCoalesced
//	all_gather_into_tensor     Group.AllGather, Group.AllGatherCoalesced
//	all_gather                 Group.AllGatherList
//	gather                     Group.Gather
//	reduce_scatter_tensor      Group.ReduceScatter, Group.ReduceScatterCoalesced
//	reduce_scatter             Group.ReduceScatterList
//	scatter                    Group.Scatter
//	all_to_all_single          Group.AllToAllSingle
//	all_to_all                 Group.AllToAll
//	barrier                    Group.Barrier
//	monitored_barrier          Group.MonitoredBarrier
//	send, recv, isend, irecv   Group.Send, Group.Recv, Group.SendAsync, Group.RecvAsync
//	recv(src=None)             Group.RecvAny
//	batch_isend_irecv          Group.Batch
//	all_gather_object          AllGatherObject
//	gather_object              GatherObject
//	broadcast_object_list      BroadcastObject
//	scatter_object_list        ScatterObject
//	send_object_list           SendObject
//	recv_object_list           RecvObject
//	new_group                  Group.NewGroup
//	get_process_group_ranks    Group.Ranks
//	split_group                Group.Split
//
// Most operations have two forms. One returns when the operation has ended. The other,
// …Async, returns a [Work] at once. The monitored barrier and the operations on objects have
// the first form only.
//
// Collectives of a group run one after the other, in the order in which they were called,
// whatever their form. Messages between two ranks in one direction run in order, independent
// of the collectives. The context of an operation bounds its wait. If the context has no
// deadline, the group's timeout bounds it. The timeout is one limit for the whole call, from
// its first wait on, however many ranks the call waits for.
//
// # Tensors
//
// Tensors are on the CPU, of any element type and any strides. A tensor on a device for which
// the group has no backend is a [DeviceError].
//
// The tensors of an operation belong to it until it has ended. A list of tensors may be
// used again at once. A destination must not overlap itself, as expanded tensors
// do. It counts as written when the operation begins: a backward pass that has
// saved the old value fails. An operation works on parameters and recorded tensors as on
// all others. Sources stay as they are. A source that shares memory with the destination is
// copied first, unless it is its own rank's part there.
//
// A dense tensor is used in place, and so is a list of tensors that lie one
// after the other in memory. Others are packed into staging memory, which the
// group keeps for later operations. Ranks of one node read and write tensors from
// tensor.NewShared directly, and staging memory too.
//
// # Groups of some ranks
//
// [Group.NewGroup] and [Group.Split] make groups of some of a group's ranks. A
// rank may be in any number of groups, with operations under way on all of them.
// Only the members take part in the making. Each group has its own order
// of operations, its own failures and its own keys in the store. Closing a group
// closes the groups that were made from it.
//
// # Reductions
//
// All ranks get the same bits. Ranks that share memory reduce in the order of
// ranks: ((x0 + x1) + x2) + …. Small data among few ranks without shared memory is reduced in
// that order too, for all contributions meet on one rank. Otherwise the order depends on the
// size of the data and on which rank is on which node, so float sums differ in the last
// bits from those of ranks that share memory. [WithDeterministic] makes it the
// order of ranks everywhere. COHORT_DEBUG=1 writes which algorithm is chosen, and why.
//
// float16 and bfloat16 are summed in float32 and rounded once in three cases: where all ranks
// share memory, under [WithDeterministic], and in groups of up to 16 ranks that
// are all on one node or all on nodes of their own. Elsewhere sums are also rounded
// on the way. [Min] and [Max] of floats are NaN if one element is. Integers wrap
// around. [Avg] of integers is their (wrapped) sum divided by the number of ranks,
// cut off towards zero. Of bool, [Sum] and [Max] are "or", [Product] and [Min]
// "and"; it has no [Avg]. [BAnd], [BOr] and [BXor] are of integers and bool,
// [PremulSum] is of floats. A reduction that has no meaning is a [ReduceError].
//
// # Failure
//
// A mismatch: two ranks call different things, in operation, count, type, reduction,
// root, parts or order. Every rank of the group fails at once with the same
// [MismatchError]. It has both calls, and the lines of the programs that made them. A
// rank that only sends in an operation, such as a root over TCP, may return before the
// mismatch is found. Its next call then has the error, or [Group.Close] if it makes none:
// Close compares the last sixteen calls of all ranks in that case, and waits up to a quarter
// of a second for ranks that have made fewer.
//
// A deadlock: two ranks wait for each other in calls that do not meet, on two groups or
// in a collective and a message. Both get a MismatchError within a second, if
// on each of them the goroutine that waits has made all calls of its rank so
// far. Where several goroutines make calls, another one could still make the missing call. So
// the time limit ends the wait, and its error says what the ranks that did not come were
// doing, and where.
//
// A lost rank: a rank dies, closes the group, gives up or calls something else. The
// pending operations of every rank end with an error that names it
// ([RankError]), and so does every later operation. A group that has failed cannot be used
// again.
//
// A timeout: the context or the group's limit ends a wait with a
// [TimeoutError] that names the missing ranks. All ranks that wait in that call get it when
// the first of them runs out of time. The group has then failed, because
// no rank knows how far the others have come.
//
// Wrong arguments: the error comes back before anything is sent, and the group stays as it
// was. The same holds for a call whose context has ended before: the call was not begun, and
// the rank's next call takes its place. No other rank learns of such an error. If one rank
// alone has it, the others wait for that rank's call until their limit, unless the rank makes
// the call again, closes the group or ends.
//
// When an operation has returned, with an error or without, its tensors belong to
// the program: no other rank of the node reads or writes them any more. After a
// failure the return may take a second, until the other ranks have left the memory. There is
// one exception: a process that is stopped while it writes, and that has not been
// found silent, finishes that write when it continues.
//
// A silent rank: its process is stopped, its machine is gone, or the
// line to it is cut. The processes of a group exchange heartbeats with
// rank 0, whatever their programs do. If nothing was heard of a rank for three seconds in
// which the line could have carried something ([WithSilence]), the rank is at fault, with the
// cause [ErrSilent], in all groups that it is in. The same holds for a rank that reaches rank
// 0 but not another rank that has data for it. A rank that is busy, late or short of
// processor time sends its heartbeats; [Group.Skew] tells how late it is.
//
// A hanging rank sends its heartbeats too. When a call has taken
// ten times as long as a step, and at least ten seconds, the first rank that waits
// in it writes to standard error which rank it waits for, at what line that rank's program
// is, and the stack of its goroutine. It does so once for each call, and after twice as long
// the next time. A dump on request, as by SIGUSR1, shows the same.
//
// The ranks that are left after a death or a silence may go on. They make a new
// group of themselves from the failed one by [Group.NewGroup], whose example shows
// the loop, and load a checkpoint. Under `cohort run` that needs the flag --survivors.
//
// # Flight recorder
//
// Every rank remembers its last calls, always, with their times and the lines
// that made them. Errors name these lines. [Group.Dump] writes what the rank remembers.
// Every rank of a group that fails writes it too, into the directory that
// COHORT_RECORDER_DIR names, and so does every rank when the launcher asks
// ([WithDumpSignal] for jobs without a launcher). Package flightlog documents the format
// and merges the ranks' dumps: which rank is where, which did not come, which is slow.
//
// # PyTorch
//
// Init(ctx, WithBackend("gloo")) makes this process a rank of a PyTorch job. The
// other ranks call init_process_group("gloo"). All meet as PyTorch's ranks do: by env://,
// tcp:// or a file ([WithURL]), or in a store ([WithStore], without a prefix of
// Cohort's). As rank 0 this process serves PyTorch's store. Init finds out which PyTorch the
// others run: 1.13, or 2.2 and later. A Group means what it means elsewhere, with these
// differences:
//
//   - What the Gloo of that PyTorch does not have is a [PyTorchError] before anything is
//     sent: parts of different sizes in gathers, averages of integers, objects
//     (Python's are pickles); in 1.13 bfloat16, bool, averages, reduce-scatters.
//   - Nothing of Cohort's own goes over the wire: no heartbeats, no comparison of
//     calls. A rank in another call is found where what it asks for does not fit: a
//     [WireError]. A rank that has made more or fewer calls is found by its next call. A rank
//     that ends and one that leaves look alike: [ErrGone]. A rank whose machine is gone is
//     found after half a minute: [ErrSilent].
//   - Float reductions are in the order of Gloo's ring, with the same bits on all
//     ranks. Elements of 16 bits are rounded at each step. Minimum and maximum
//     take NaN as PyTorch's do.
//   - NewGroup is new_group: all ranks of the job call it, and ranks that are no members get
//     nil. WithBackend("native") makes groups of Go ranks, with all that native groups have.
//   - PyTorch's protocols have no token, and no encryption but the TLS of Gloo's own. Whoever
//     reaches the ports is in. The ports are open to this host, and to other hosts by
//     [WithAdmitted]. Gloo's ports are also open to a member that comes from the address that
//     it has published in the store.
//
// The page docs/pytorch.md lists what was tested with which PyTorch.
//
// # Tests
//
// Package disttest is a cluster inside `go test`: it runs a main function such
// as a training loop on ranks of a virtual network in virtual time, kills and
// stops ranks, cuts lines, and plays the same again.
//
// # How a call gets to the wire
//
// A method such as [Group.AllReduce] makes a request: it checks the arguments and borrows the
// tensors' memory. Then the request passes five steps, each a function in request.go, lane.go
// or operand.go:
//
//	call      or callAsync: takes the request from the method
//	admit     counts the call as running, unless the group is closed or its backend refuses it
//	lane      gives the call its number and its turn; messages have a lane for each peer
//	perform   has the flight recorder note its begin, its end and its error
//	move      copies into staging memory where needed, and calls the backend's communicator
//
// # Where things are
//
// How data moves is the matter of a backend. dist/internal/backend holds the two interfaces
// that a backend implements, and says what to do for a new one, such as NCCL or MPI:
// backends.go has the table of all backends, to which it is added.
//
//   - group.go: the [Group] and what it knows; init.go, newgroup.go: how it is formed.
//   - options.go, backends.go: the options, and the names of backends.
//   - reduce.go, broadcast.go, gather.go, scatter.go, alltoall.go, barrier.go, message.go,
//     object.go: the operations.
//   - request.go, operand.go, staging.go, lane.go, work.go: from a method to the backend.
//   - errors.go, failure.go: errors, whose types are in package fault.
//   - watchdog.go, skew.go, record.go: what is wrong, and where the ranks are; traffic.go: how many
//     bytes they have given to each other.
//   - spawn.go, main.go: ranks as goroutines, and main functions for the launcher.
//
// In packages of their own: dist/internal/meeting brings Cohort's ranks together,
// dist/internal/native moves their data, dist/internal/pytorch joins PyTorch's jobs,
// dist/internal/gloo speaks their wire. dist/internal/liveness knows which processes have
// died. dist/internal/diagnosis finds deadlocks and calls that take too long.
//
// Where rank, host and PID of an error about a lost rank are filled in, and where to mend
// which of them, stands in dist/fault, section "How a lost rank is named".
//
// # Concurrency
//
// A Group may be used by several goroutines. They must then agree on the
// order of collectives with the other ranks' goroutines, which is seldom what
// a program wants. The zero Group cannot be used.
package dist
