// SPDX-License-Identifier: Apache-2.0

// Package dist lets ranks talk: it forms groups of ranks and moves tensors
// between them.
//
// A [Group] is a value with a rank, a size and the operations of
// torch.distributed. Every rank of the group calls the same collectives in the
// same order with the same shapes; a rank that does not is told so
// ([MismatchError]), and so is everybody else. Ranks are processes that meet
// through their environment ([Init], under `cohort run` or torchrun's
// variables), or goroutines of one process ([Spawn]); the code between is the
// same.
//
// # Operations
//
// Names and meanings are PyTorch's; arguments are in its order, destination
// first, and roots are ranks of the group.
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
// Each but the monitored barrier and those on objects has a form that returns
// when it has ended and an asynchronous one, …Async, that returns a [Work].
// Collectives of a group run one after the other in the order in which they
// were called, whatever their form; messages run in order for each pair of
// ranks and direction, independent of the collectives. The context of an
// operation bounds its wait; without an end of its own, the group's timeout
// does: one limit for the whole call, however many ranks it waits for and whatever
// it consists of, from its first wait on.
//
// # Tensors
//
// Tensors are on the CPU, of any element type and any strides. Until an
// operation has ended its tensors belong to it; a list may be used again at
// once. What an operation writes must not overlap itself, as expanded tensors
// do, and counts as written when the operation begins: a backward pass that has
// saved the old value fails. Otherwise it does not matter to an operation
// whether a tensor is recorded or a parameter. Sources stay as they are; one
// that shares memory with the destination is copied first, unless it is its own
// rank's part there.
//
// A dense tensor is used in place, and so is a list of tensors that lie one
// after the other in memory. Others are packed into staging memory, which the
// group keeps for the next such operation. Tensors from tensor.NewShared are
// read and written by the ranks of a node directly; so is staging memory.
//
// # Groups of some ranks
//
// [Group.NewGroup] and [Group.Split] make groups of some of a group's ranks. A
// rank may be in any number of them, with operations under way on all at once;
// the members alone take part in the making, and each group has its own order
// of operations, its own faults and its own keys in the store. Closing a group
// closes those that were made from it.
//
// # Reductions
//
// All ranks get the same bits. Ranks that share memory reduce in the order of
// ranks: ((x0 + x1) + x2) + …. So do others where all contributions meet on one
// rank, as those of small data among few ranks do; elsewhere the order depends on
// the size of the data and on who is where, and float sums differ in the last
// bits from those of ranks that share memory. [WithDeterministic] makes it the
// order of ranks everywhere. COHORT_DEBUG tells what is chosen, and why.
//
// float16 and bfloat16 are summed in float32 and rounded once where all ranks
// share memory, under [WithDeterministic], and in groups of up to 16 ranks that
// are all on one node or all on nodes of their own; elsewhere sums are rounded on
// the way too. [Min] and [Max] of floats are NaN if one element is. Integers wrap
// around. [Avg] of integers is their (wrapped) sum divided by the number of ranks,
// cut off towards zero. Of bool, [Sum] and [Max] are "or", [Product] and [Min]
// "and"; it has no [Avg]. [BAnd], [BOr] and [BXor] are of integers and bool,
// [PremulSum] is of floats. What has no meaning is a [ReduceError].
//
// # Failure
//
// Two ranks that call different things, in operation, count, type, reduction,
// root, parts or order, make every rank of the group fail at once with one
// [MismatchError]: both calls, and the lines of the programs that made them. A
// rank that only sends in an operation, such as a root over TCP, has then done
// its part: it is told by its next call, or by [Group.Close] if it makes none.
// After such a call Close compares the last sixteen calls of all ranks before it
// leaves, and waits up to a quarter of a second for ranks that have not come as far.
//
// Two ranks that wait for each other in calls that do not meet, on two groups or
// in a collective and a message, get a MismatchError too, within a second, if
// on each of them the goroutine that waits has made all calls of its rank so
// far. Where several goroutines make calls nothing is certain, and the time
// limit ends the wait: its error says what the ranks that did not come were
// doing instead, and where.
//
// When a rank dies, closes the group, gives up or calls something else, the
// pending operations of every rank end with an error that names it
// ([RankError]), and so does every later one: a group that has failed is of no
// more use. Contexts and the group's time limit end a wait with a
// [TimeoutError] that names the missing ranks, on all ranks that wait in that call
// when the first of them runs out of time; this too fails the group, for
// nobody knows how far the others have come. Errors about arguments come back
// before anything is sent and leave the group as it was, and so does the error of
// a call whose context has ended before: it was not begun, and the rank's next
// call takes its place. Nobody else hears of such an error: where one rank alone
// has it, the others wait for its call until their limit, unless the rank makes
// the call again in another way, closes the group or ends.
//
// An operation that has returned, with an error or without, leaves its tensors to
// the program: no other rank of the node reads or writes them any more. After a
// failure this may take a second, while the others that are at them leave off.
// They do so within milliseconds, but for a process that is stopped just then and
// has not been found silent: what it was about to write it writes when it goes on.
//
// A rank may also fall silent: its process is stopped, its machine has gone, the
// line to it is cut without a word. Groups of processes exchange beats with
// their rank 0, whatever their programs do, and after three seconds without, in which
// the line could have carried them ([WithSilence]), the rank is at fault, with the cause [ErrSilent], in all groups
// that it is in. So is a rank that reaches rank 0 but not another one that it has
// data for. A rank that is only busy, late or starved of its processors beats
// on; its lateness is in [Group.Skew]. One that hangs does so too: when a call has taken
// ten times what a step does, and ten seconds at least, the first of the ranks that wait
// in it writes to standard error for whom, at what line that one's program is, and the
// stack of its goroutine, once for each call, and after twice as long the next time. A dump that is asked for, as by SIGUSR1,
// shows the same.
//
// The ranks that are left after a death or a silence may go on: they make a new
// group of themselves from the failed one by [Group.NewGroup], whose example is
// the loop for that, and load a checkpoint. `cohort run` lets them only with its
// flag --survivors.
//
// # Flight recorder
//
// Every rank remembers its last calls, always, with their times and the line
// that made them, which errors name too. [Group.Dump] writes what it remembers;
// so does every rank of a group that fails, into the directory that
// COHORT_RECORDER_DIR names, if it is set, and when the launcher asks
// ([WithDumpSignal] for jobs without one). Package flightlog documents the form
// and merges the ranks' dumps: who is where, who did not come, who is slow.
//
// # PyTorch
//
// Init(ctx, WithBackend("gloo")) makes this process a rank of a PyTorch job: the
// others call init_process_group("gloo"). They meet as PyTorch's ranks do, by env://,
// tcp:// or a file ([WithURL]), or a store ([WithStore], without a prefix of
// Cohort's); as rank 0 this process serves PyTorch's store. PyTorch 1.13 and PyTorch 2.2 and
// later are found out. A Group means what it means elsewhere, but for this:
//
//   - What the Gloo of that PyTorch does not have is a [PyTorchError] before anything is
//     sent: parts of different sizes in gathers, averages of integers, objects
//     (Python's are pickles); in 1.13 bfloat16, bool, averages, reduce-scatters.
//   - Nothing of Cohort's own goes over the wire: neither beats nor the comparison of
//     calls. A rank in another call is found where what it asks for does not fit: a
//     [WireError]. Whose count of calls differs is found by its next one. A rank
//     that ends and one that leaves look alike: [ErrGone]. One whose machine has gone is
//     found after half a minute: [ErrSilent].
//   - Float reductions are in the order of Gloo's ring, with the same bits on all
//     ranks; elements of 16 bits are rounded at each step, and minimum and maximum
//     take NaN as PyTorch's do.
//   - NewGroup is new_group: all ranks of the job call it, and those that are no members get
//     nil. WithBackend("native") makes groups of Go ranks, with all that native ones have.
//   - PyTorch's protocols know no token and no encryption but TLS of Gloo's own: who reaches
//     the ports is in. They are open to this host, and to others by [WithAdmitted]; Gloo's also
//     to a member that comes from the address that it has published in the store.
//
// The page docs/pytorch.md has what was run with which PyTorch.
//
// # Tests
//
// Package disttest is a cluster inside `go test`: it runs a main function such
// as a training loop on ranks of a virtual network in virtual time, kills and
// stops ranks, cuts lines, and plays the same again.
//
// # Concurrency
//
// A Group may be used by several goroutines; then they must agree on the
// order of collectives with the other ranks' goroutines, which is seldom what
// a program wants. The zero Group is of no use.
package dist
