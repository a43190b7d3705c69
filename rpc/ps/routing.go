// SPDX-License-Identifier: Apache-2.0

package ps

import (
	"fmt"

	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// numPartitions is how many partitions the keys of a hashed table have. A partition is
// the unit that moves from a server to another.
const numPartitions = rows.NumPartitions

// maxServers bounds the servers of a job: each has at least a partition.
const maxServers = numPartitions

// partitionOf returns the partition of a key.
func partitionOf(key int64) int { return int(rows.Hash(key) % numPartitions) }

// spread says which server has each partition. It begins with one server. Each further
// server takes partitions one by one, until it has its share: always the last partition of
// the server that has most, the first of several. So a further server is all that moves
// partitions, and no two servers differ by more than one partition.
func spread(servers int) []uint16 {
	of := make([]uint16, numPartitions)
	has := make([][]int, servers) // partitions in increasing order
	for p := range of {
		has[0] = append(has[0], p)
	}
	for n := 1; n < servers; n++ {
		for range numPartitions / (n + 1) {
			most := 0
			for s := range n {
				if len(has[s]) > len(has[most]) {
					most = s
				}
			}
			last := len(has[most]) - 1
			p := has[most][last]
			has[most] = has[most][:last]
			of[p] = uint16(n)
		}
		for p, s := range of {
			if int(s) == n {
				has[n] = append(has[n], p)
			}
		}
	}
	return of
}

// Routing says which server has which keys, for a number of servers. It is a function of
// that number alone, so all clients and servers agree without talking. A hashed table has
// any 64-bit keys, which are spread by partitions; a dense table has the keys 0 to Rows-1,
// of which each server has a range.
type Routing struct {
	servers    int
	partitions []uint16
}

// NewRouting returns the routing over a number of servers, 1 to 1024.
func NewRouting(servers int) (*Routing, error) {
	if servers < 1 || servers > maxServers {
		return nil, fmt.Errorf("ps: %d servers: want 1 to %d", servers, maxServers)
	}
	return &Routing{servers, spread(servers)}, nil
}

// Servers returns the number of servers.
func (r *Routing) Servers() int { return r.servers }

// ServerOf returns the server that has a key of a table. numRows are those of a dense table,
// 0 for a hashed one.
func (r *Routing) ServerOf(key int64, numRows int) int {
	if numRows > 0 {
		return int(((key+1)*int64(r.servers) - 1) / int64(numRows))
	}
	return int(r.partitions[partitionOf(key)])
}

// Range returns the rows from lo to hi-1 of a dense table that a server has.
func (r *Routing) Range(server, numRows int) (lo, hi int64) {
	return int64(server) * int64(numRows) / int64(r.servers), int64(server+1) * int64(numRows) / int64(r.servers)
}

// Owns returns the function that says whether a server has a key of a table.
func (r *Routing) Owns(server, numRows int) func(key int64) bool {
	if numRows > 0 {
		lo, hi := r.Range(server, numRows)
		return func(key int64) bool { return lo <= key && key < hi }
	}
	return func(key int64) bool { return int(r.partitions[partitionOf(key)]) == server }
}

// split is a list of keys by server.
type split struct {
	keys [][]int64 // of each server, in the order of the list
	at   [][]int32 // where they were in the list
}

// split deals a list of keys out to their servers.
func (r *Routing) split(keys []int64, numRows int) split {
	s := split{make([][]int64, r.servers), make([][]int32, r.servers)}
	if r.servers == 1 {
		s.keys[0] = keys
		return s
	}
	owner := make([]uint16, len(keys))
	count := make([]int, r.servers)
	for i, k := range keys {
		o := r.ServerOf(k, numRows)
		owner[i] = uint16(o)
		count[o]++
	}
	allKeys, allAt := make([]int64, len(keys)), make([]int32, len(keys))
	for o, n := range count {
		s.keys[o], allKeys = allKeys[:0:n], allKeys[n:]
		s.at[o], allAt = allAt[:0:n], allAt[n:]
	}
	for i, k := range keys {
		o := owner[i]
		s.keys[o] = append(s.keys[o], k)
		s.at[o] = append(s.at[o], int32(i))
	}
	return s
}
