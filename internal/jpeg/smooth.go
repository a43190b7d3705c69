// SPDX-License-Identifier: Apache-2.0

package jpeg

// A progressive file whose last scans are missing has blocks of which only the
// mean is known, or the coarse part of some coefficients. libjpeg estimates the
// coefficients that are still zero from the means of the blocks around, so that
// no edges show between blocks, and so do we, to the last bit: the means of 5·5
// blocks, weighted by a table for each coefficient. Where no coefficient but the
// mean is known the tables are others, of more coefficients, and the mean is
// smoothed too.

// smoothed is how many coefficients are estimated, from the first on in zigzag
// order.
const smoothed = 10

// weights are those of the 5·5 means, row by row, times 256.
type weights [25]int32

var (
	// Where other coefficients are known.
	someKnown = [smoothed]weights{
		1: {10: -7, 11: 50, 13: -50, 14: 7},
		2: {2: -7, 7: 50, 17: -50, 22: 7},
		3: {2: -1, 7: 13, 12: -24, 17: 13, 22: -1},
		4: {1: -1, 3: 1, 5: -1, 6: 10, 8: -10, 9: 1, 15: 1, 16: -10, 18: 10, 19: -1, 21: 1, 23: -1},
		5: {10: -1, 11: 13, 12: -24, 13: 13, 14: -1},
	}
	// Where the mean alone is.
	meanKnown = [smoothed]weights{
		0: {
			-2, -6, -8, -6, -2,
			-6, 6, 42, 6, -6,
			-8, 42, 152, 42, -8,
			-6, 6, 42, 6, -6,
			-2, -6, -8, -6, -2,
		},
		1: {
			-1, -1, 0, 1, 1,
			-3, 13, 0, -13, 3,
			-3, 38, 0, -38, 3,
			-3, 13, 0, -13, 3,
			-1, -1, 0, 1, 1,
		},
		2: {
			-1, -3, -3, -3, -1,
			-1, 13, 38, 13, -1,
			0, 0, 0, 0, 0,
			1, -13, -38, -13, 1,
			1, 3, 3, 3, 1,
		},
		3: {2: 1, 6: 2, 7: 7, 8: 2, 11: -5, 12: -14, 13: -5, 16: 2, 17: 7, 18: 2, 22: 1},
		4: {0: -1, 4: 1, 6: 9, 8: -9, 16: -9, 18: 9, 20: 1, 24: -1},
		5: {6: 2, 7: -5, 8: 2, 10: 1, 11: 7, 12: -14, 13: 7, 14: 1, 16: 2, 17: -5, 18: 2},
		6: {6: 1, 8: -1, 11: 2, 13: -2, 16: 1, 18: -1},
		7: {6: 1, 7: -3, 8: 1, 16: -1, 17: 3, 18: -1},
		8: {6: 1, 8: -1, 11: -3, 13: 3, 16: 1, 18: -1},
		9: {6: 1, 7: 2, 8: 1, 16: -1, 17: -2, 18: -1},
	}
)

// learn notes which bits of the coefficients a scan brings: known is the lowest
// bit of each that is, -1 for none, and before what it was before this scan.
func (c *component) learn(from, to, low, scan int) {
	for k := min(from, 1); k < smoothed; k++ {
		if c.before[k] = 0; scan > 1 {
			c.before[k] = c.known[k]
		}
	}
	for k := from; k <= min(to, smoothed-1); k++ {
		c.known[k] = int8(low)
	}
}

// smoothable reports whether the means of all components are known, and some
// coefficient is not to its last bit.
func (d *Decoder) smoothable() bool {
	useful := false
	for i := range d.comps {
		c := &d.comps[i]
		if !c.seen || c.known[0] < 0 {
			return false
		}
		for k := range smoothed {
			if c.quant[k] == 0 {
				return false
			}
			useful = useful || k > 0 && c.known[k] != 0
		}
	}
	return useful
}

// smooth estimates the coefficients of a block that are zero and not known.
func (d *Decoder) smooth(c *component, coef *[64]int16, bx, by int) {
	blocksX, blocksY := (c.width+7)/8, (c.height+7)/8
	if bx >= blocksX || by >= blocksY {
		return // only fills up the last MCU
	}
	row := by / c.v // of MCUs
	known := c.known
	if row > d.lastGood { // the last scan was cut off above
		if known = c.before; d.scans <= 1 {
			for k := range known {
				known[k] = -1
			}
		}
	}
	table := &meanKnown
	for k := 1; k < smoothed; k++ {
		if known[k] != -1 {
			table = &someKnown
		}
	}
	// The rows of blocks above and below, counted as libjpeg does: it counts the
	// rows that fill up the last MCU as ones of the image, and in that MCU by
	// those that do not.
	inRow, at := c.v, by
	if row == d.mcusY-1 {
		if inRow = blocksY % c.v; inRow == 0 {
			inRow = c.v
		}
		at = row*inRow + by - row*c.v
	}
	last := inRow*d.mcusY - 1
	var ys, xs [5]int
	for i := range ys {
		ys[i] = by + max(min(at+i-2, last), 0) - at
		xs[i] = max(min(bx+i-2, blocksX-1), 0)
	}
	var means [25]int32
	for i, y := range ys {
		for j, x := range xs {
			means[5*i+j] = int32(c.coefs[y*c.blocksX+x][0])
		}
	}
	for k := range smoothed {
		w := &table[k]
		if k == 0 && table == &someKnown || k > 0 && (known[k] == 0 || coef[zigzag[k]] != 0 || k > 5 && table == &someKnown) {
			continue
		}
		sum := int64(0)
		for i, m := range means {
			sum += int64(w[i]) * int64(m)
		}
		sum *= int64(c.quant[0])
		q := int64(c.quant[k])
		v := ((q << 7) + max(sum, -sum)) / (q << 8)
		if k > 0 && known[k] > 0 { // no more than what is not known
			v = min(v, 1<<known[k]-1)
		}
		if sum < 0 {
			v = -v
		}
		coef[zigzag[k]] = int16(v)
	}
}
