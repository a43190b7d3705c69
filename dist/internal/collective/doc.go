// SPDX-License-Identifier: Apache-2.0

// Package collective is what all backends have in common, without moving any bytes: the data
// of a call ([Data]), reductions ([Reduction]), and the algorithms as pure functions
// ([Plan]): which rank sends, receives and reduces which elements, in which order. Package
// operation says what a call is, package fault how it fails, and package backend what a
// backend implements. Nothing here waits or knows a transport, so that a plan can be checked
// for any number of ranks by running it in a table.
//
// # Files
//
//	calls        data.go (Data), reduction.go, topology.go (which ranks share a node)
//	plans        plan.go (Plan, its memory), builder.go (how algorithms make one)
//	algorithms   table.go (all of them, by operation), direct.go, ring.go, tree.go, recursive.go, level.go (several nodes)
//	choice       choose.go (PlanFor), cost.go (the model of the links)
//
// # Plans
//
// A plan is one rank's list of sends and its list of receives, with copies and reductions
// between them, on the elements of output, input and working memory. The plans of all ranks
// end however late a send is taken, for all ranks come to what they exchange in one order. No
// receive overwrites what an earlier send may still have to read, unless the receive itself
// shows that the send has ended.
//
// Every piece carries its call, and its receiver compares the call with its own. So the first
// rank that hears from a rank with another call finds the mismatch, and tells all. A rank that
// only sends, such as the root of a broadcast, is told too. Where calls differ so that no rank
// hears from another, the backend makes ranks that have waited for long tell what they wait for.
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
