// SPDX-License-Identifier: Apache-2.0

package jpeg

import (
	"github.com/cohort-ml/cohort/internal/kernel"
)

// maxScans bounds the work that a small file can ask for.
const maxScans = 500

// area is a part of the image in MCUs; the ends are not in it.
type area struct{ x0, y0, x1, y1 int }

// decodeScans reads all scans and leaves the samples of the MCUs of need in the
// planes.
func (d *Decoder) decodeScans(need area) error {
	first := true
	for header := d.first; header != nil; {
		if d.scans++; d.scans > maxScans {
			return d.fail("more than %d scans", maxScans)
		}
		comps, from, to, high, low, err := d.readScan(header)
		if err != nil {
			return err
		}
		if first && !d.progressive && len(comps) == len(d.comps) {
			d.makePlanes()
			return d.sequential(comps, need)
		}
		if first {
			for i := range d.comps {
				c := &d.comps[i]
				c.coefs = make([][64]int16, c.blocksX*c.blocksY)
			}
		}
		first = false
		for _, c := range comps {
			if !c.seen { // a table that is written anew is for components to come
				c.seen, c.quant = true, d.quant[c.tq]
			}
			if d.progressive {
				c.learn(from, to, low, d.scans)
			}
		}
		if err := d.collect(comps, from, to, high, low); err != nil {
			return err
		}
		if header, err = d.toScan(); err != nil {
			return err
		}
	}
	d.makePlanes()
	d.transform(need)
	return nil
}

// makePlanes takes the memory of the samples, from the last file's if it is
// enough.
func (d *Decoder) makePlanes() {
	for i := range d.comps {
		c := &d.comps[i]
		c.stride = 8*c.blocksX + 2*margin
		if n := c.stride * (8*c.blocksY + 1); cap(d.rows[i]) < n {
			d.rows[i] = make([]byte, n)
		}
		c.plane = d.rows[i][:c.stride*(8*c.blocksY+1)]
	}
}

// row returns the samples of a row, with margin bytes before and after them.
func (c *component) row(y int) []byte {
	return c.plane[y*c.stride : (y+1)*c.stride]
}

// begin starts reading the codes of a scan.
func (d *Decoder) begin(comps []*component) {
	d.restarts, d.short, d.lastGood = 0, false, 0
	d.pos = d.scan.load(d.file, d.pos)
	for _, c := range comps {
		c.pred = 0
	}
}

// restart goes on behind the next restart marker. Where another marker stands
// there, it is either passed over, up to one that fits, or it is taken for one
// that is still to come, and the blocks up to it are empty: what libjpeg does,
// so that a damaged file is off only up to the next restart.
func (d *Decoder) restart(comps []*component) error {
	want := rst0 + d.restarts%8
	d.restarts++
	for _, c := range comps {
		c.pred = 0
	}
	for {
		// d.pos is at a marker, or at the end of the file.
		at := d.pos
		for at < len(d.file) && d.file[at] == 0xff {
			at++
		}
		if at >= len(d.file) {
			return d.failCut("it ends before restart %d", d.restarts)
		}
		d.pos = at - 1 // fill bytes are passed once, however many restarts stay at this marker
		m := int(d.file[at])
		isRestart, ahead := m >= rst0 && m <= rst7, (m-want)&7
		switch {
		case isRestart && ahead != 1 && ahead != 2 && ahead != 6 && ahead != 7: // this one, or nowhere near
			d.short = false
			d.pos = d.scan.load(d.file, at+1)
			return nil
		case m < sof0 || isRestart && ahead >= 6: // none, or one from before
			if d.pos = d.nextMarker(at + 1); d.pos < 0 {
				d.pos = len(d.file)
			}
		default:
			d.scan.empty() // d.short stays: the first block may still be read of nothing
			return nil
		}
	}
}

// nextMarker returns where the next marker from pos on begins, -1 if none does.
func (d *Decoder) nextMarker(pos int) int {
	for ; pos+1 < len(d.file); pos++ {
		if next := d.file[pos+1]; d.file[pos] == 0xff && next != 0 && next != 0xff {
			return pos
		}
	}
	return -1
}

// usedUp notes that codes were read behind the last byte. Up to the next restart
// blocks are empty, as in libjpeg; at the end of the file it is an error.
func (d *Decoder) usedUp() error {
	if d.scan.cut {
		return d.failCut("its codes end too early")
	}
	d.short = true
	return nil
}

// sequential decodes the only scan of a file.
func (d *Decoder) sequential(comps []*component, need area) error {
	coef := &d.coef
	*coef = [64]int16{} // a file that failed may have left something
	d.begin(comps)
	left := d.interval // MCUs up to the next restart, if there is one
	for my := range need.y1 {
		for mx := range d.mcusX {
			if d.interval > 0 {
				if left == 0 {
					if err := d.restart(comps); err != nil {
						return err
					}
					left = d.interval
				}
				left--
			}
			wanted := my >= need.y0 && mx >= need.x0 && mx < need.x1
			if d.short {
				if wanted {
					d.emptyMCU(comps, mx, my)
				}
				continue
			}
			for _, c := range comps {
				dc, ac, quant := &d.dc[c.td], &d.ac[c.ta], &d.quant[c.tq]
				for v := range c.v {
					for h := range c.h {
						if !wanted {
							d.scan.skip(dc, ac, &c.pred)
							continue
						}
						to := c.plane[(my*c.v+v)*8*c.stride+margin+(mx*c.h+h)*8:]
						if d.scan.block(coef, dc, ac, quant, &c.pred) {
							kernel.InverseDCT(to, c.stride, coef)
							*coef = [64]int16{}
						} else {
							flat(to, c.stride, coef[0])
							coef[0] = 0
						}
					}
				}
			}
			if d.scan.over() {
				if err := d.usedUp(); err != nil {
					return err
				}
			}
		}
	}
	if need.y1 < d.mcusY {
		return nil
	}
	// All pixels are there. What follows may be cut off, but not be wrong.
	header, err := d.toScan()
	if e, ok := err.(*Error); ok && e.cut {
		return nil
	}
	if err == nil && header != nil {
		err = d.fail("a second scan of all components")
	}
	return err
}

// emptyMCU is one of which there are no codes: grey.
func (d *Decoder) emptyMCU(comps []*component, mx, my int) {
	for _, c := range comps {
		for v := range c.v {
			for h := range c.h {
				flat(c.plane[(my*c.v+v)*8*c.stride+margin+(mx*c.h+h)*8:], c.stride, 0)
			}
		}
	}
}

// flat is the transform of a block that has its mean alone.
func flat(to []byte, stride int, dc int16) {
	v := uint64(byte(min(max((int32(dc)+4)>>3+128, 0), 255))) * 0x0101010101010101
	for y := range 8 {
		row := to[y*stride:]
		_ = row[7]
		row[0], row[1], row[2], row[3] = byte(v), byte(v), byte(v), byte(v)
		row[4], row[5], row[6], row[7] = byte(v), byte(v), byte(v), byte(v)
	}
}

// transform makes samples of the coefficients of a file of several scans.
func (d *Decoder) transform(need area) {
	smooth := d.progressive && d.smoothable()
	for i := range d.comps {
		c := &d.comps[i]
		for by := need.y0 * c.v; by < need.y1*c.v; by++ {
			for bx := need.x0 * c.h; bx < need.x1*c.h; bx++ {
				coef := &c.coefs[by*c.blocksX+bx]
				if smooth {
					d.coef = *coef // the neighbours need it as it is
					coef = &d.coef
					d.smooth(c, coef, bx, by)
				}
				for k, q := range c.quant {
					coef[zigzag[k]] *= int16(q)
				}
				kernel.InverseDCT(c.plane[by*8*c.stride+margin+bx*8:], c.stride, coef)
			}
		}
	}
	for i := range d.comps {
		d.comps[i].coefs = nil
	}
}

// collect reads a scan of a file of several into the coefficients.
func (d *Decoder) collect(comps []*component, from, to, high, low int) error {
	// A scan of one component has its blocks row by row, without those that only
	// fill up the last MCU.
	across, down, rows := d.mcusX, d.mcusY, 1
	if len(comps) == 1 {
		across, down, rows = (comps[0].width+7)/8, (comps[0].height+7)/8, comps[0].v
	}
	p := pass{d: d, from: uint(from), to: uint(to), low: uint(low), refine: high > 0}
	d.begin(comps)
	left := d.interval
	for my := range down {
		for mx := range across {
			if !d.short {
				d.lastGood = my / rows
			}
			if d.interval > 0 {
				if left == 0 {
					if err := d.restart(comps); err != nil {
						return err
					}
					left, p.zeros = d.interval, 0
				}
				left--
			}
			if d.short {
				continue
			}
			if len(comps) == 1 {
				p.block(comps[0], &comps[0].coefs[my*comps[0].blocksX+mx])
			} else {
				for _, c := range comps {
					for v := range c.v {
						for h := range c.h {
							p.block(c, &c.coefs[(my*c.v+v)*c.blocksX+mx*c.h+h])
						}
					}
				}
			}
			if d.scan.over() {
				if err := d.usedUp(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// unit has the quantisation of coefficients that are multiplied later.
var unit = func() (q [64]uint16) {
	for i := range q {
		q[i] = 1
	}
	return q
}()

// pass is a scan over the coefficients (T.81 §G).
type pass struct {
	d        *Decoder
	from, to uint
	low      uint // the lowest bit that the scan has
	refine   bool
	zeros    uint32 // blocks to come without new coefficients
}

// block decodes what the scan has of a block.
func (p *pass) block(c *component, coef *[64]int16) {
	r := &p.d.scan
	switch {
	case !p.d.progressive:
		*coef = [64]int16{}
		r.block(coef, &p.d.dc[c.td], &p.d.ac[c.ta], &unit, &c.pred)
	case p.from == 0 && p.refine:
		if r.take(1) != 0 {
			coef[0] |= 1 << p.low
		}
	case p.from == 0:
		size := uint(r.symbol(&p.d.dc[c.td]) & 15)
		c.pred += extend(r.take(size), size)
		coef[0] = int16(c.pred << p.low)
	case p.refine:
		p.refineAC(r, &p.d.ac[c.ta], coef)
	default:
		p.firstAC(r, &p.d.ac[c.ta], coef)
	}
}

// firstAC decodes coefficients of which nothing is known yet (§G.1.2.2).
func (p *pass) firstAC(r *reader, ac *table, coef *[64]int16) {
	if p.zeros > 0 {
		p.zeros--
		return
	}
	for k := p.from; k <= p.to; k++ {
		symbol := r.symbol(ac)
		run, size := uint(symbol>>4), uint(symbol&15)
		if size == 0 {
			if run < 15 {
				p.zeros = 1<<run - 1 + r.take(run)
				return
			}
			k += 15
			continue
		}
		k += run
		coef[zigzag[k&127]] = int16(extend(r.take(size), size) << p.low)
	}
}

// refineAC decodes one more bit of the known coefficients, and new ones that
// are 1 or -1 of it (§G.1.2.3).
func (p *pass) refineAC(r *reader, ac *table, coef *[64]int16) {
	k, one := p.from, int16(1)<<p.low
	if p.zeros == 0 {
		for k <= p.to {
			symbol := r.symbol(ac)
			run, size := uint(symbol>>4), symbol&15
			fresh := int16(0)
			if size == 0 {
				if run < 15 {
					p.zeros = 1<<run + r.take(run)
					break
				}
			} else if r.take(1) != 0 {
				fresh = one
			} else {
				fresh = -one
			}
			// The run counts coefficients that are still zero; the others on the way get their
			// bit.
			for k <= p.to {
				v := &coef[zigzag[k]]
				if *v != 0 {
					refineOne(r, v, one)
				} else {
					if run == 0 {
						break
					}
					run--
				}
				k++
			}
			if fresh != 0 { // in a damaged file behind the last, as libjpeg has it
				coef[zigzag[k&127]] = fresh
			}
			k++
		}
	}
	if p.zeros > 0 {
		for ; k <= p.to; k++ {
			if v := &coef[zigzag[k]]; *v != 0 {
				refineOne(r, v, one)
			}
		}
		p.zeros--
	}
}

func refineOne(r *reader, v *int16, one int16) {
	if r.take(1) != 0 && *v&one == 0 {
		if *v > 0 {
			*v += one
		} else {
			*v -= one
		}
	}
}
