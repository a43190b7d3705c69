// SPDX-License-Identifier: Apache-2.0

// Package flightlog reads what the ranks' flight recorders wrote, and makes one report on the job from
// it: in which call the ranks wait, which never came, which called something else, which are slow.
//
// Every rank always keeps its last calls (2,048 of them, for some 150 ns a call). They are written as a
// [Dump]: a file rank-N.json that only its owner may read, in the directory that COHORT_RECORDER_DIR
// names. Ranks write it when a group fails, when the launcher asks (`cohort run` asks after a failure,
// and when it gets SIGUSR1), and on the signal of an option of dist.Init. [Load] reads the files and
// [Merge] makes the [Report], which `cohort recorder` prints.
//
// # The dump
//
// One JSON object a rank. Times in nanoseconds count from start, on the clock
// of that rank alone.
//
//	version     1
//	rank        the rank in the job, of world_size
//	host, pid   where it runs
//	reason      why it was written: "failed: …", "asked", "signal …"
//	at, stack   where its program was, and on what stack, if it was asked for
//	asked       the number of the launcher's request that it answers
//	start       when the recorder began, RFC 3339 with nanoseconds
//	time_ns     when the dump was made
//	sites       texts of call sites, "dir/file.go:88 pkg.Func"; the first is ""
//	groups      the groups of this rank, each
//	  name, key   the name in errors; the key tells groups of one name apart
//	  rank, size  this rank's number in it, and how many there are
//	  ranks       the members' numbers in the job; left out where they are 0 to size-1
//	  members     rank, host and pid of the members, in the group of all ranks
//	  transport   how the members exchange data
//	  called, begun, ended   the number of the last collective that was made,
//	              that began to run, that ended without error
//	  calls, waited_ns       how many have ended, and how long they took in all
//	  error, error_ns        the first error of a call, and when
//	  culprits    the ranks in the job that this error names
//	  closed      whether this rank has left the group
//	  skew        how late ranks of the job come, as far as it is known: rank,
//	              late_ns (a collective, on average), share (of all time, 0 to
//	              1), step_ns (a step, or a collective and what is before it)
//	entries     the calls, oldest first, each
//	  group       its place in groups
//	  op, dtype, count, reduce, root, layout   what was called; layout stands
//	              for the sizes of uneven parts; init and new_group are the
//	              first collective, with which the group was formed
//	  peer        of a send or a recv: the other rank of the group, -1 for any
//	  seq         the number of the collective in the group, or of the message
//	              between the two ranks in that direction
//	  called_ns, begun_ns, ended_ns   when; left out where it has not come to that
//	  state       "called" (it waits for calls before it), "begun" (it runs),
//	              "ended" or "failed"
//	  error       of a failed call
//	  site        its place in sites
//	  background  whether the caller went on meanwhile
//
// # The report
//
// One JSON object (`cohort recorder --json`). Ranks are numbers in the job
// throughout, sets of them texts such as "0-3,7". As text (`cohort recorder`) its
// first line names the ranks that are waited for.
//
//	version, world_size
//	dumps       the ranks whose dumps there are
//	no_dump     the others: they had ended, did not answer, or wrote elsewhere
//	forming     the ranks that wait in dist.Init for others
//	groups      those in trouble first, each
//	  name, key, size
//	  ended_min, ended_max   the last collective that has ended, on the rank
//	              that is behind and on the one that is ahead
//	  waiting     the first collective that ranks wait in or have given up
//	    seq, call           its number and operation
//	    ranks               that came to it
//	    longest_ns          how long the first of them has waited
//	    gave_up             whether it has failed
//	    sites               the lines that called it: site, ranks
//	    missing             the ranks that did not come
//	    unrecorded          in a PyTorch job, ranks without a dump
//	    absent              of these, at most 16, each
//	      rank, host, pid
//	      why               "elsewhere", "late", "no dump", "left the group", …
//	      late_ns           how long after the others had given up it came
//	      stale_ns          how much older its dump is than the latest, if it
//	                        is from before the others came
//	      last              the last collective of the group that it called, and
//	      doing             the call that it runs now, in whichever group: group,
//	                        call, seq, state, site, ago_ns
//	      reason            of its dump, if it failed itself
//	      fate              what the launcher knows of one that has no dump
//	  mismatches  collectives that ranks called differently: seq, and sides,
//	              each with ranks, call, site
//	  messages    sends and receives that wait: rank, peer, call (as last),
//	              peer_seq and peer_known (what the peer has called on its side)
//	  told        errors of calls: ranks, error, culprits
//	  recent      the last collectives, at most 8, the newest first: seq, and calls,
//	              each with ranks, call, state ("" has not come), site
//	  slow        who the others wait for: rank, wait_ns of step_ns
//	notes       what makes the report less sure
//
// Dumps are input like any other: [Read] has limits, and what is printed has no
// control characters.
package flightlog
