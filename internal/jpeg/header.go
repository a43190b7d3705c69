// SPDX-License-Identifier: Apache-2.0

package jpeg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// ErrUnsupported says that a file is JPEG of a kind that is not decoded.
var ErrUnsupported = errors.New("jpeg: a kind that is not decoded")

// Error says what is wrong with a file, and where.
type Error struct {
	Offset int // in the file
	Msg    string
	cut    bool // the file ends too early
}

func (e *Error) Error() string { return fmt.Sprintf("jpeg: at byte %d: %s", e.Offset, e.Msg) }

// The second bytes of markers.
const (
	sof0 = 0xc0 // baseline
	sof1 = 0xc1 // extended sequential
	sof2 = 0xc2 // progressive
	dht  = 0xc4
	sof3 = 0xc3 // this one to sofF, but for dht and dac, are lossless, hierarchical or arithmetic
	dac  = 0xcc
	sofF = 0xcf
	rst0 = 0xd0
	rst7 = 0xd7
	soi  = 0xd8
	eoi  = 0xd9
	sos  = 0xda
	dqt  = 0xdb
	dnl  = 0xdc
	dri  = 0xdd
	dhp  = 0xde
	exp  = 0xdf
	app0 = 0xe0
	appE = 0xee
	appF = 0xef
	com  = 0xfe
	tem  = 0x01
)

// Decoder decodes files, one after the other. The zero value is ready.
type Decoder struct {
	opened
	dc, ac [4]table

	inScan [maxComps]*component
	coef   [64]int16
	scan   reader           // over the entropy coded bytes of a scan
	rows   [maxComps][]byte // memory of the planes
	up     [maxComps][]byte // a row of a plane that is sampled less often
	lines  [maxComps][]byte // a row of each component, in one of these
}

// opened is what is known of a file.
type opened struct {
	file []byte
	pos  int

	width, height int
	progressive   bool
	colours       colours
	comps         []component
	hMax, vMax    int
	mcusX, mcusY  int
	interval      int // MCUs between restarts; 0 is none
	adobe         int // the transform that an Adobe marker names, -1 without one
	jfif          bool
	quant         [4][64]uint16 // in zigzag order
	hasQuant      [4]bool

	scans    int
	first    []byte // the header of the first scan
	restarts int    // seen in this scan
	short    bool   // the bytes up to the next restart are used up: blocks are empty
	lastGood int    // row of MCUs of the last scan that had bytes
}

const (
	maxComps  = 4
	maxBlocks = 10 // of an MCU
)

// component is a plane of the image.
type component struct {
	id, h, v, tq  int
	width, height int // samples that the image needs
	blocksX       int // blocks in a row of all MCUs
	blocksY       int
	td, ta        int
	pred          int32 // of the DC coefficient
	plane         []byte
	stride        int
	coefs         [][64]int16 // of a file of several scans
	quant         [64]uint16  // of such a file: the table when the first scan had it
	seen          bool        // a scan had it
	known, before [smoothed]int8
}

// margin is how many bytes a plane has before and after a row, for filters that
// read neighbours and vectors that read on.
const margin = 32

// Open reads the header of a file and returns the size of its image. The file
// must stay as it is until it is decoded.
func (d *Decoder) Open(file []byte) (width, height int, err error) {
	if err := d.open(file); err != nil {
		return 0, 0, err
	}
	if d.first, err = d.toScan(); err != nil {
		return 0, 0, err
	}
	if d.first == nil {
		return 0, 0, d.fail("no image in the file")
	}
	d.colours = d.colourSpace()
	// Where only a part is decoded the end of the file is not read, but a file that
	// was cut off must be an error whatever part is asked for.
	if bytes.LastIndex(file[d.pos:], []byte{0xff, eoi}) < 0 {
		d.pos = len(file)
		return 0, 0, d.failCut("it has no end marker")
	}
	return d.width, d.height, nil
}

// Memory is how many bytes decoding the file that was opened takes, besides the
// file and the result.
func (d *Decoder) Memory() int64 {
	each := int64(64) // of a block: its samples
	if d.progressive || len(d.first) > 0 && int(d.first[0]) < len(d.comps) {
		each += 128 // and its coefficients, which several scans bring
	}
	n := int64(len(d.file)) // the codes without what is stuffed
	for i := range d.comps {
		c := &d.comps[i]
		n += each*int64(c.blocksX)*int64(c.blocksY) + 2*margin*8*int64(c.blocksY) + 4*int64(d.width)
	}
	return n
}

// Held is how many bytes the decoder keeps for the next file.
func (d *Decoder) Held() int {
	n := cap(d.scan.buf)
	for i := range d.rows {
		n += cap(d.rows[i]) + cap(d.up[i])
	}
	return n
}

func (d *Decoder) fail(format string, args ...any) error {
	return &Error{Offset: d.pos, Msg: fmt.Sprintf(format, args...)}
}

// failCut says that the file ends too early.
func (d *Decoder) failCut(format string, args ...any) error {
	return &Error{Offset: d.pos, Msg: "the file is cut off: " + fmt.Sprintf(format, args...), cut: true}
}

// open forgets the last file.
func (d *Decoder) open(file []byte) error {
	d.opened = opened{file: file, comps: d.comps[:0], adobe: -1}
	for i := range d.dc {
		d.dc[i].valid, d.ac[i].valid = false, false
		d.dc[i].defined, d.ac[i].defined = false, false
	}
	if len(file) < 2 || file[0] != 0xff || file[1] != soi {
		return d.fail("not a JPEG file")
	}
	d.pos = 2
	return nil
}

// toScan reads markers up to the next scan, whose header it returns, or to the
// end of the image, where it is nil.
func (d *Decoder) toScan() (header []byte, err error) {
	for {
		// Fill bytes and what is left of a scan before the marker are passed over.
		i := bytes.IndexByte(d.file[d.pos:], 0xff)
		if i < 0 || d.pos+i+1 >= len(d.file) {
			d.pos = len(d.file)
			return nil, d.failCut("it has no end marker")
		}
		d.pos += i + 1
		m := d.file[d.pos]
		if m == 0xff { // again from this one
			continue
		}
		d.pos++
		switch {
		case m == 0 || m == tem || m >= rst0 && m <= rst7:
			continue
		case m == eoi:
			return nil, nil
		case m == soi:
			return nil, d.fail("a second image begins")
		}
		if len(d.file)-d.pos < 2 {
			return nil, d.failCut("it ends in marker %#02x", m)
		}
		n := int(binary.BigEndian.Uint16(d.file[d.pos:]))
		passed := m >= app0 && m <= appF || m == com || m == dnl
		if passed {
			n = max(n, 2) // what is passed over may say anything
		}
		left := len(d.file) - d.pos
		switch {
		case passed && n > left:
			return nil, d.failCut("marker %#02x is of %d bytes, %d are left", m, n, left)
		case n < 2 || n > left:
			return nil, d.fail("marker %#02x is of %d bytes, %d are left", m, n, left)
		}
		b := d.file[d.pos+2 : d.pos+n]
		switch {
		case m == sof0 || m == sof1 || m == sof2:
			d.progressive = m == sof2
			err = d.readFrame(b)
		case m == dht:
			err = d.readHuffman(b)
		case m >= sof3 && m <= sofF && m != dac:
			return nil, fmt.Errorf("%w: frame %#02x (lossless, hierarchical or arithmetic)", ErrUnsupported, m)
		case m < sof0 || m == dhp || m == exp || m > appF && m != com:
			return nil, d.fail("marker %#02x is none that there is", m)
		case m == dqt:
			err = d.readQuant(b)
		case m == dri:
			if len(b) != 2 {
				return nil, d.fail("a restart interval of %d bytes", len(b))
			}
			d.interval = int(binary.BigEndian.Uint16(b))
		case m == app0:
			d.jfif = d.jfif || len(b) >= 14 && bytes.HasPrefix(b, []byte("JFIF\x00"))
		case m == appE:
			if len(b) >= 12 && bytes.HasPrefix(b, []byte("Adobe")) {
				d.adobe = int(b[11])
			}
		case m == sos:
			if len(d.comps) == 0 {
				return nil, d.fail("a scan before the frame")
			}
			d.pos += n
			return b, nil
		}
		if err != nil {
			return nil, err
		}
		d.pos += n
	}
}

func (d *Decoder) readFrame(b []byte) error {
	if len(d.comps) > 0 {
		return d.fail("a second frame")
	}
	if len(b) < 6 || len(b) != 6+3*int(b[5]) {
		return d.fail("a frame header of %d bytes", len(b))
	}
	if b[0] != 8 {
		return fmt.Errorf("%w: %d bits a sample", ErrUnsupported, b[0])
	}
	d.height, d.width = int(binary.BigEndian.Uint16(b[1:])), int(binary.BigEndian.Uint16(b[3:]))
	if d.width == 0 || d.height == 0 {
		return d.fail("an image of %d·%d pixels", d.width, d.height)
	}
	n := int(b[5])
	if n != 1 && n != 3 && n != maxComps {
		return fmt.Errorf("%w: %d components", ErrUnsupported, n)
	}
	for i := range n {
		c := b[6+3*i:]
		comp := component{id: int(c[0]), h: int(c[1] >> 4), v: int(c[1] & 15), tq: int(c[2])}
		if comp.h < 1 || comp.h > 4 || comp.v < 1 || comp.v > 4 || comp.tq > 3 {
			return d.fail("component %d with sampling %d·%d and table %d", i, comp.h, comp.v, comp.tq)
		}
		if n == 1 {
			comp.h, comp.v = 1, 1 // the only one is not sampled, whatever it says
		}
		for k := range comp.known {
			comp.known[k], comp.before[k] = -1, -1
		}
		d.hMax, d.vMax = max(d.hMax, comp.h), max(d.vMax, comp.v)
		d.comps = append(d.comps, comp)
	}
	for i, c := range d.comps {
		if d.hMax%c.h != 0 || d.vMax%c.v != 0 {
			return fmt.Errorf("%w: component %d has %d·%d samples where another has %d·%d", ErrUnsupported, i, c.h, c.v, d.hMax, d.vMax)
		}
	}
	up := func(a, b int) int { return (a + b - 1) / b }
	d.mcusX, d.mcusY = up(d.width, 8*d.hMax), up(d.height, 8*d.vMax)
	for i := range d.comps {
		c := &d.comps[i]
		c.width, c.height = up(d.width*c.h, d.hMax), up(d.height*c.v, d.vMax)
		c.blocksX, c.blocksY = d.mcusX*c.h, d.mcusY*c.v
	}
	return nil
}

func (d *Decoder) readQuant(b []byte) error {
	for len(b) > 0 {
		wide, t := int(b[0]>>4), b[0]&15
		n := 64 << wide
		if wide > 1 || t > 3 || len(b) < 1+n {
			return d.fail("a quantisation table %#02x in %d bytes", b[0], len(b))
		}
		for i := range 64 {
			if wide == 0 {
				d.quant[t][i] = uint16(b[1+i])
			} else {
				d.quant[t][i] = binary.BigEndian.Uint16(b[1+2*i:])
			}
		}
		d.hasQuant[t] = true
		b = b[1+n:]
	}
	return nil
}

func (d *Decoder) readHuffman(b []byte) error {
	for len(b) > 0 {
		if len(b) < 17 {
			return d.fail("a Huffman table in %d bytes", len(b))
		}
		class, t := b[0]>>4, b[0]&15
		total := 0
		for _, n := range b[1:17] {
			total += int(n)
		}
		if class > 1 || t > 3 || total > 256 || len(b) < 17+total {
			return d.fail("a Huffman table %#02x with %d codes in %d bytes", b[0], total, len(b))
		}
		tab := &d.dc[t]
		if class == 1 {
			tab = &d.ac[t]
		}
		tab.build([16]byte(b[1:17]), b[17:17+total], class == 0) // who needs it looks whether it is one
		tab.defined = true
		b = b[17+total:]
	}
	return nil
}

// readScan takes over a scan's header.
func (d *Decoder) readScan(b []byte) (comps []*component, from, to, high, low int, err error) {
	if len(b) < 1 || len(b) != 4+2*int(b[0]) || b[0] < 1 || int(b[0]) > len(d.comps) {
		return nil, 0, 0, 0, 0, d.fail("a scan header of %d bytes", len(b))
	}
	comps = d.inScan[:0]
	for i := range int(b[0]) {
		id, tabs := int(b[1+2*i]), b[2+2*i]
		var comp *component
		for j := range d.comps {
			if c := &d.comps[j]; c.id == id && !slices.Contains(comps, c) {
				comp = c // where several have one id, they come in order
				break
			}
		}
		if comp == nil || tabs>>4 > 3 || tabs&15 > 3 {
			return nil, 0, 0, 0, 0, d.fail("a scan of component %d with tables %#02x", id, tabs)
		}
		comp.td, comp.ta = int(tabs>>4), int(tabs&15)
		comps = append(comps, comp)
	}
	if blocks := blocksOf(comps); len(comps) > 1 && blocks > maxBlocks {
		return nil, 0, 0, 0, 0, d.fail("a scan has %d blocks in an MCU, want at most %d", blocks, maxBlocks)
	}
	n := len(b)
	from, to, high, low = int(b[n-3]), int(b[n-2]), int(b[n-1]>>4), int(b[n-1]&15)
	if !d.progressive {
		from, to, high, low = 0, 63, 0, 0
	}
	switch {
	case from > to || to > 63 || from == 0 && to != 0 && d.progressive || from > 0 && len(comps) != 1,
		high != 0 && high != low+1, low > 13:
		return nil, 0, 0, 0, 0, d.fail("a scan of coefficients %d to %d, bits %d to %d, of %d components", from, to, high, low, len(comps))
	}
	if !d.progressive {
		d.addUsualTables()
	}
	for _, c := range comps {
		needsDC, needsAC := from == 0 && high == 0, to > 0
		if needsDC && !d.dc[c.td].valid || needsAC && !d.ac[c.ta].valid {
			return nil, 0, 0, 0, 0, d.fail("a scan needs Huffman tables %d and %d, which are missing or no code", c.td, c.ta)
		}
		if !d.hasQuant[c.tq] {
			return nil, 0, 0, 0, 0, d.fail("component %d needs quantisation table %d, which is missing", c.id, c.tq)
		}
	}
	return comps, from, to, high, low, nil
}

// blocksOf is how many blocks an MCU of a scan has.
func blocksOf(comps []*component) (n int) {
	for _, c := range comps {
		n += c.h * c.v
	}
	return n
}
