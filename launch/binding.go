// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Binding says to which processors each rank is bound. Every rank belongs to a NUMA node.
// Local rank i belongs to the node of GPU i, if there is one. Other ranks are spread
// evenly over the nodes, in order.
type Binding string

// The bindings are those of torchrun's --numa-binding.
const (
	BindNone        Binding = ""             // all processors that this process may use
	BindNode        Binding = "node"         // those of the rank's NUMA node
	BindSocket      Binding = "socket"       // those of the socket to which that node belongs
	BindExclusive   Binding = "exclusive"    // some of the node's cores, which no other rank gets
	BindCoreComplex Binding = "core-complex" // the cores of the node that share one third-level cache; the ranks take the caches in turn
)

// ParseBinding reads the name of a binding. The empty text is an error.
func ParseBinding(text string) (Binding, error) {
	all := []Binding{BindNode, BindSocket, BindExclusive, BindCoreComplex}
	if b := Binding(text); slices.Contains(all, b) {
		return b, nil
	}
	return BindNone, fmt.Errorf("there are %s, %s, %s and %s", BindNode, BindSocket, BindExclusive, BindCoreComplex)
}

// processor is a processor that this process may use: its number, and the parts of the
// machine to which it belongs.
type processor struct {
	id, node, socket, core, cache int
}

// bindRanks returns the processors of each rank, in order. gpuNodes are the NUMA nodes of
// the GPUs, -1 where a node is not known. There may be fewer GPUs than ranks.
func bindRanks(how Binding, cpus []processor, numRanks int, gpuNodes []int) ([][]int, error) {
	nodes := distinct(cpus, func(c processor) int { return c.node })
	if len(nodes) == 0 {
		return nil, fmt.Errorf("the system does not say which processors there are")
	}
	home := make([]int, numRanks) // the node of a rank
	siblings := map[int][]int{}   // the ranks of a node
	for i := range home {
		home[i] = nodes[i*len(nodes)/numRanks]
		if i < len(gpuNodes) && slices.Contains(nodes, gpuNodes[i]) {
			home[i] = gpuNodes[i]
		}
		siblings[home[i]] = append(siblings[home[i]], i)
	}
	out := make([][]int, numRanks)
	for i, node := range home {
		here := matching(cpus, func(c processor) bool { return c.node == node })
		place, peers := slices.Index(siblings[node], i), len(siblings[node])
		switch how {
		case BindNode:
		case BindSocket:
			socket := here[0].socket
			here = matching(cpus, func(c processor) bool { return c.socket == socket })
		case BindExclusive:
			cores := distinct(here, func(c processor) int { return c.core })
			if len(cores) < peers {
				return nil, fmt.Errorf("NUMA node %d has %d cores for %d ranks: start fewer, or bind them to the node", node, len(cores), peers)
			}
			// If the cores cannot be shared evenly, the first ranks get one more.
			from := place*(len(cores)/peers) + min(place, len(cores)%peers)
			n := len(cores) / peers
			if place < len(cores)%peers {
				n++
			}
			mine := cores[from : from+n]
			here = matching(here, func(c processor) bool { return slices.Contains(mine, c.core) })
		case BindCoreComplex:
			caches := distinct(here, func(c processor) int { return c.cache })
			mine := caches[place%len(caches)]
			here = matching(here, func(c processor) bool { return c.cache == mine })
		default:
			return nil, fmt.Errorf("no binding %q", how)
		}
		for _, c := range here {
			out[i] = append(out[i], c.id)
		}
	}
	return out, nil
}

// threadsOf returns the number of threads of a bound rank: the number of its processors,
// divided by the number of ranks that are bound to the same processors.
func threadsOf(bound [][]int, rank int) int {
	n := 0
	for _, other := range bound {
		if slices.Equal(other, bound[rank]) {
			n++
		}
	}
	return max(1, len(bound[rank])/n)
}

func distinct(cpus []processor, key func(processor) int) []int {
	var out []int
	for _, c := range cpus {
		out = append(out, key(c))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func matching(cpus []processor, want func(processor) bool) (out []processor) {
	for _, c := range cpus {
		if want(c) {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b processor) int { return cmp.Compare(a.id, b.id) })
	return out
}

// listOf writes a list of numbers as the kernel does: 0-3,8.
func listOf(ids []int) string {
	var b strings.Builder
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, ids[i])
		if j > i {
			fmt.Fprintf(&b, "-%d", ids[j])
		}
		i = j + 1
	}
	return b.String()
}
