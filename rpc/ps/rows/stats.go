// SPDX-License-Identifier: Apache-2.0

package rows

import "math/bits"

// Stats are numbers about a table.
type Stats struct {
	Rows, Hot   int   // rows, and those of them in memory
	Bytes       int64 // of rows with their headers and states, in memory
	DiskBytes   int64 // of segments with rows on disk
	IndexBytes  int64
	Young       int   // keys that wait for their admission
	Gone        int   // keys that were removed and not yet forgotten
	Made        int64 // rows made since the table is in this process
	Admitted    int64 // of them, after waiting
	Removed     int64
	Updates     int64   // calls of Update
	Pushes      int64   // of keys with a row
	ColdReads   int64   // rows read from disk
	DiskProblem string  // why rows stay in memory beyond Schema.Memory, "" if they do not
	Skew        float64 // the share of pushes that the hundredth of rows with most of them had, about
}

// counters are what Stats are made of.
type counters struct {
	made, admitted, removed, updates, pushes int64
	// rows and their pushes by the number of bits of the pushes.
	rows, weight [33]int64
}

func (c *counters) begin(pushes uint32) {
	b := bits.Len32(pushes)
	c.made++
	c.rows[b]++
	c.weight[b] += int64(pushes)
}

func (c *counters) end(pushes uint32) {
	b := bits.Len32(pushes)
	c.rows[b]--
	c.weight[b] -= int64(pushes)
}

// push counts a push of a row that had some before.
func (c *counters) push(before uint32) {
	c.pushes++
	if before >= maxCount {
		return
	}
	b, after := bits.Len32(before), bits.Len32(before+1)
	if b == after {
		c.weight[b]++
		return
	}
	c.rows[b]--
	c.weight[b] -= int64(before)
	c.rows[after]++
	c.weight[after] += int64(before) + 1
}

// add adds other counts, and makes them zeros.
func (c *counters) add(other *counters) {
	c.made += other.made
	c.admitted += other.admitted
	c.removed += other.removed
	c.updates += other.updates
	c.pushes += other.pushes
	for b := range c.rows {
		c.rows[b] += other.rows[b]
		c.weight[b] += other.weight[b]
	}
	*other = counters{}
}

// skew takes whole classes of rows from the one with most pushes on, and of the last class
// its average.
func (c *counters) skew() float64 {
	rows, weight := int64(0), int64(0)
	for b := range c.rows {
		rows += c.rows[b]
		weight += c.weight[b]
	}
	if weight == 0 {
		return 0
	}
	left, got := max(1, float64(rows)/100), 0.0
	for b := len(c.rows) - 1; b >= 0 && left > 0; b-- {
		if n := float64(c.rows[b]); n > 0 {
			take := min(n, left)
			got += float64(c.weight[b]) * take / n
			left -= take
		}
	}
	return got / float64(weight)
}

// Stats returns numbers about the table.
func (t *Table) Stats() Stats {
	t.mu.RLock()
	defer t.mu.RUnlock()
	c := &t.stats
	s := Stats{
		Rows: t.numRows(), Hot: t.rows.live(), Bytes: t.rows.bytes() + t.young.bytes() + t.gone.bytes(),
		Young: t.young.live(), Gone: t.gone.live(),
		Made: c.made, Admitted: c.admitted, Removed: c.removed, Updates: c.updates, Pushes: c.pushes, Skew: c.skew(),
	}
	if c := t.cold; c != nil {
		s.Bytes += c.headers.bytes()
		s.DiskBytes = int64(len(c.live)-len(c.free)) * segmentRows * int64(c.size)
		s.ColdReads = c.reads.Load()
		if e := c.problem.Load(); e != nil {
			s.DiskProblem = e.Error()
		}
	}
	for _, x := range t.stores() {
		s.IndexBytes += x.index.memory.bytes
	}
	return s
}
