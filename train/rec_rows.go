// SPDX-License-Identifier: Apache-2.0

package train

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/cohort-ml/cohort/data"
	"github.com/cohort-ml/cohort/data/table"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/tensor"
)

// shareOf is the part of the rows that a rank reads. Without a group a process reads all.
func shareOf(ctx context.Context, group *dist.Group) table.Share {
	if group == nil || group.Size() == 1 {
		return table.Share{}
	}
	// A rank that is stopped tells the others so; they wait no longer than for a collective.
	ctx = context.WithoutCancel(ctx)
	return table.Share{Index: group.Rank(), Count: group.Size(), Exchange: func(own []byte) ([][]byte, error) {
		return dist.AllGatherObject(ctx, group, own)
	}}
}

// dealtRows are the rows of a part, of which each rank holds those that it has read. The
// order of samples is that of one rank with all rows. So the ranks send each other the
// rows of the batches to come, some batches at a time: as the order is known, a rank knows
// who wants which of its rows, and nobody has to ask.
type dealtRows struct {
	group  *dist.Group
	own    *table.Part
	starts []int // of each rank's rows among those of the part, and the end of the last
	most   int   // rows of all ranks that are sent at a time, in whole batches

	mu     sync.Mutex
	came   chan struct{} // closed when rows have come
	rounds []dealtRound  // those whose rows are in use
}

// dealtRound has the rows of this rank's samples at positions before end.
type dealtRound struct {
	end  int64
	rows map[data.Key]table.Row
}

func newDealtRows(group *dist.Group, own *table.Part) *dealtRows {
	d := &dealtRows{group: group, own: own, starts: []int{0}, most: roundRows, came: make(chan struct{})}
	for _, n := range own.Counts() {
		d.starts = append(d.starts, d.starts[len(d.starts)-1]+n)
	}
	return d
}

// Len is the number of rows of all ranks.
func (d *dealtRows) Len() int { return d.starts[len(d.starts)-1] }

// Fingerprint is that of all rows.
func (d *dealtRows) Fingerprint() string { return d.own.Fingerprint() }

// isWhole says whether this rank holds all rows.
func (d *dealtRows) isWhole() bool { return d.own.Len() == d.Len() && len(d.starts) == 2 }

// Get implements data.Dataset. A row of a later round is waited for.
func (d *dealtRows) Get(ctx context.Context, key data.Key) (table.Row, error) {
	if d.isWhole() {
		return d.own.Get(ctx, key)
	}
	for {
		d.mu.Lock()
		came := d.came
		for _, round := range d.rounds {
			if row, ok := round.rows[key]; ok {
				d.mu.Unlock()
				return row, nil
			}
		}
		d.mu.Unlock()
		select {
		case <-came:
		case <-ctx.Done():
			return table.Row{}, fmt.Errorf("row %d of epoch %d: %w", key.Index, key.Epoch, context.Cause(ctx))
		}
	}
}

// holder returns the rank that holds a row.
func (d *dealtRows) holder(index int) int {
	lo, hi := 0, len(d.starts)-1
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; d.starts[mid] <= index {
			lo = mid
		} else {
			hi = mid
		}
	}
	for lo+2 < len(d.starts) && d.starts[lo+1] == index { // ranks without rows
		lo++
	}
	return lo
}

// roundRows is how many rows of all ranks are sent at a time.
const roundRows = 1 << 15

// dealtFeed is a loader over dealtRows.
type dealtFeed struct {
	*data.Loader[table.Row, table.Batch]
	rows    *dealtRows
	sampler *data.Stream
	pass    int // samples of all ranks in a pass
}

// Next sees to it that the rows of the batch, and of those that workers make ahead, have
// been sent.
func (f *dealtFeed) Next(ctx context.Context) (table.Batch, error) {
	at := f.State().Position
	for f.rows.end(at) < at+int64(f.pass)*(1+int64(f.rows.most/f.pass)/2) {
		if err := f.rows.deal(ctx, f.sampler, f.pass, at); err != nil {
			return table.Batch{}, fmt.Errorf("exchange rows with the other ranks: %w", err)
		}
	}
	return f.Loader.Next(ctx)
}

// end returns the position up to which rows have been sent, at or after at.
func (d *dealtRows) end(at int64) int64 {
	if n := len(d.rounds); n > 0 {
		at = max(at, d.rounds[n-1].end)
	}
	return at
}

// deal sends the rows of the next batches. All ranks call it for the same positions.
func (d *dealtRows) deal(ctx context.Context, order *data.Stream, pass int, at int64) error {
	begin, me, size := d.end(at), d.group.Rank(), d.group.Size()
	end := begin + int64(pass)*int64(max(1, d.most/pass))
	schema := d.own.Schema()
	width := 4 * (1 + len(schema.Numbers) + len(schema.Categories))
	send, want := make([][]byte, size), make([][]data.Key, size)
	for p := begin; p < end; p++ {
		key := order.At(p)
		holder, taker := d.holder(key.Index), int((p-begin)%int64(pass))%size
		if holder == me {
			send[taker] = appendRow(send[taker], d.own.At(key.Index-d.starts[me]))
		}
		if taker == me {
			want[holder] = append(want[holder], key)
		}
	}
	var out []byte
	var sendCounts, recvCounts []int
	rows := 0
	for rank := range size {
		out = append(out, send[rank]...)
		sendCounts, recvCounts = append(sendCounts, len(send[rank])/width), append(recvCounts, len(want[rank]))
		rows += len(want[rank])
	}
	got := tensor.New(tensor.CPU(), tensor.Uint8, rows, width)
	if err := d.group.AllToAllSingle(ctx, got, tensor.FromUint8(out, len(out)/width, width), recvCounts, sendCounts); err != nil {
		return err
	}
	in := got.Buffer().Data
	round := dealtRound{end: end, rows: make(map[data.Key]table.Row, rows)}
	for _, keys := range want {
		for _, key := range keys {
			round.rows[key], in = takeRow(in, schema), in[width:]
		}
	}
	runtime.KeepAlive(got) // its memory goes to another tensor when nobody holds it
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.rounds) > 0 && d.rounds[0].end <= at {
		d.rounds = d.rounds[1:]
	}
	d.rounds = append(d.rounds, round)
	close(d.came)
	d.came = make(chan struct{})
	return nil
}

// appendRow appends a row's values, of 4 bytes each.
func appendRow(b []byte, row table.Row) []byte {
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(row.Label))
	for _, v := range row.Numbers {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	for _, v := range row.Categories {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// takeRow reads what appendRow has appended.
func takeRow(b []byte, s table.Schema) table.Row {
	next := func() uint32 {
		v := binary.LittleEndian.Uint32(b)
		b = b[4:]
		return v
	}
	row := table.Row{Label: math.Float32frombits(next()), Numbers: make([]float32, len(s.Numbers)), Categories: make([]int32, len(s.Categories))}
	for i := range row.Numbers {
		row.Numbers[i] = math.Float32frombits(next())
	}
	for i := range row.Categories {
		row.Categories[i] = int32(next())
	}
	return row
}

// gatherOwn returns the values of all ranks' rows, one after the other.
func gatherOwn(ctx context.Context, group *dist.Group, own []float32, counts []int) ([]float32, error) {
	if len(counts) == 1 {
		return own, nil
	}
	most := 0
	for _, n := range counts {
		most = max(most, n)
	}
	mine := make([]float32, most)
	copy(mine, own)
	all := tensor.Zeros(most * len(counts))
	if err := group.AllGather(ctx, all, tensor.FromFloat32(mine, most)); err != nil {
		return nil, err
	}
	var values []float32
	for rank, n := range counts {
		values = append(values, all.Float32s()[rank*most:][:n]...)
	}
	return values, nil
}

// gatherTruth returns the logits by which the labels of a generated part were drawn.
func gatherTruth(ctx context.Context, group *dist.Group, own *table.Part) ([]float64, error) {
	truth, _ := own.Truth()
	narrow := make([]float32, len(truth))
	for i, v := range truth {
		narrow[i] = float32(v) // as the table has them
	}
	narrow, err := gatherOwn(ctx, group, narrow, own.Counts())
	truth = truth[:0]
	for _, v := range narrow {
		truth = append(truth, float64(v))
	}
	return truth, err
}
