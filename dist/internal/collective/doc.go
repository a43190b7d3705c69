// SPDX-License-Identifier: Apache-2.0

// Package collective is what all backends have in common, without moving any bytes: the
// data of a call ([Data]), the interface of a backend ([Backend]), reductions
// ([Reduction]), and the algorithms as pure functions ([Plan]): which rank sends, receives
// and reduces which elements, in which order. What a call is, package operation says, and
// package fault how it fails. Nothing here waits or knows a transport, so that a plan can
// be checked for any number of ranks by running it in a table.
//
// It is the seam between package dist, which users see, and the packages that
// implement [Backend]. A backend is driven by one group. The group numbers the
// calls, checks their arguments and keeps their order; the backend moves and
// reduces. Data is borrowed for the length of a call and never kept.
//
// # Plans
//
// A plan is one rank's list of sends and one of receives, with copies and
// reductions in between, on the elements of output, input and working memory.
// Plans of all ranks end however late a send is taken: all come to what they
// exchange in one order. And nothing is written that an earlier send may still
// have to read, unless what comes shows that the send has ended.
//
// Every piece carries its call, and who receives it compares it with its own.
// So a rank that calls something else is found by the first rank that hears
// from it, which tells all; a rank that only sends, as the root of a broadcast
// does, is told too. Where calls differ so that nobody hears from anybody, the
// backend has ranks that have waited for long say what they wait for.
//
// # Algorithms
//
// n ranks, S bytes of the whole vector, β the time of a byte and γ of reducing
// one, α of a message (its latency and what it costs both sides), o what it
// costs its sender. N nodes of k ranks.
//
//	operation       algorithm                        time about                      chosen for
//	barrier         dissemination [HFM]              log n α
//	                two-level                        2 log k α' + log N α            several nodes
//	all_reduce      exchange                         (n-1)(o + Sβ) + α + nSγ         small S, few ranks
//	                recursive doubling [TRG §4.5]    log n (α + Sβ + Sγ)             small S, many ranks
//	                halving and doubling [R]         2 log n α + 2Sβ(n-1)/n + Sγ     large S, n a power of two
//	                direct                           2((n-1)o + α + Sβ(n-1)/n) + Sγ  medium and large S, up to 64 ranks
//	                ring [PY]                        2(n-1)α + 2Sβ(n-1)/n + Sγ       large S, many ranks
//	                two-level [J] over one of these  as that with S/k, N             several nodes of k ranks
//	                two-level by leaders             as that with S, N               nodes with different k
//	reduce_scatter  direct                           (n-1)o + α + Sβ(n-1)/n + Sγ     up to 64 ranks
//	                recursive halving [TRG §4.4]     log n α + Sβ(n-1)/n + Sγ        many ranks, a power of two
//	                ring                             (n-1)α + Sβ(n-1)/n + Sγ         large S, many ranks
//	                two-level                        (N-1)o + α + Sβ(N-1)/N          several nodes
//	all_gather      direct, ring, two-level          as reduce_scatter
//	                Bruck [B §4]                     log n α + Sβ(n-1)/n             small S, many ranks
//	broadcast       binomial tree [TRG §3]           log n (α + Sβ)                  small S
//	                scatter and all-gather [TRG §4]  direct: nα + 2Sβ(n-1)/n         medium S
//	                chain                            (n-2)(α + piece β) + Sβ         large S
//	                two-level binomial tree          trees of nodes and of ranks     several nodes
//	reduce          direct                           (n-1)o + α + nSβ                small S, few ranks
//	                binomial tree                    log n (α + Sβ + Sγ)             small S
//	                reduce-scatter and gather [R]    2((n-1)o + α + Sβ(n-1)/n) + Sγ  medium S
//	                chain                            (n-2)(α + piece β) + S(β+γ)     large S
//	gather, scatter direct                           (n-1)o + α + Sβ(n-1)/n          few ranks, uneven parts
//	                binomial tree [TRG §3]           log n α + Sβ(n-1)/n             many ranks of even parts
//	all_to_all      pairwise exchange [TRG §4.3]     (n-1)o + α + Sβ(n-1)/n          large S, uneven parts
//	                Bruck [B §3]                     log n (α + Sβ/2)                small S
//	                two-level                        (N-1)o + α + Sβ                 several nodes
//
// [PlanFor] computes each time by [DefaultCosts] and takes the least; links
// between nodes are shared by their ranks. testdata/chosen.txt shows what comes
// out, and the tests play all algorithms in time to see that it is near the
// best. In two-level forms each byte passes a node's link once; the chain and
// the ring do so too, since they go from node to node.
//
// Exchange and direct algorithms reduce the contributions of all ranks at once,
// in the order of ranks: elements of 16 bits are summed in float32 and rounded
// once. Only these serve groups that ask for [Options].Deterministic, so that
// results have the same bits on every topology, and as in shared memory. The
// cost: on several nodes every rank's bytes pass the link, k times as many as
// in a two-level form, and each rank has a connection to each. For elements of
// 16 bits they are also the only ones in groups of up to 16 ranks, but for those
// with several ranks on each of several nodes, which round once a level;
// elsewhere partial sums of 16 bits are rounded at each step.
//
// Sources: [B] Bruck, Ho, Kipnis, Upfal and Weathersby, Efficient algorithms
// for all-to-all communications in multiport message-passing systems, 1997.
// [HFM] Hensgen, Finkel and Manber, Two algorithms for barrier synchronization,
// 1988. [J] Jia and others, Highly scalable deep learning training system with
// mixed-precision, 2018, §4.3. [PY] Patarasuk and Yuan, Bandwidth optimal
// all-reduce algorithms for clusters of workstations, 2009. [R] Rabenseifner,
// Optimization of collective reduction operations, 2004. [TRG] Thakur,
// Rabenseifner and Gropp, Optimization of collective communication operations in
// MPICH, 2005.
package collective
