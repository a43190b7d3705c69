// SPDX-License-Identifier: Apache-2.0

package kernel

import "github.com/cohort-ml/cohort/internal/work"

// The cells of recurrent networks on a batch: matrices are [batch, hidden] and
// the gates of a row lie side by side, as in PyTorch's weights.

// cellElems is the work of one element of a cell compared with that of a plain
// loop, which decides whether threads share it.
const cellElems = 16

// fromTanh turns t = tanh(x/2) into 1/(1+exp(-x)).
func fromTanh(t float32) float32 { return 0.5*t + 0.5 }

// halveAndTanh replaces gates by tanh(x/2) in [0, n) of a row, and by tanh(x)
// in the rest.
func halveAndTanh(k *vectorKernels, row []float32, n int) {
	k.mulScalar(row[:n], row[:n], 0.5)
	k.tanh(row, row)
}

// LSTMCell computes a step of long short-term memory (Hochreiter and
// Schmidhuber 1997, with a forget gate). gates [batch, 4·hidden] are the sums
// for input, forget, cell and output gate; they are replaced by the gates.
func LSTMCell(p *work.Pool, h, c, gates, cPrev []float32, batch, hidden int) {
	k := vec()
	overItems(p, batch, cellElems*batch*hidden, func(lo, hi int) {
		for b := lo; b < hi; b++ {
			row := gates[b*4*hidden : (b+1)*4*hidden]
			in, forget, cell, out := row[:hidden], row[hidden:2*hidden], row[2*hidden:3*hidden], row[3*hidden:]
			k.mulScalar(row[:2*hidden], row[:2*hidden], 0.5)
			k.mulScalar(out, out, 0.5)
			k.tanh(row, row)
			before, after, state := cPrev[b*hidden:(b+1)*hidden], c[b*hidden:(b+1)*hidden], h[b*hidden:(b+1)*hidden]
			forget, cell, out, after, state = forget[:len(in)], cell[:len(in)], out[:len(in)], after[:len(in)], state[:len(in)]
			for j, x := range before[:len(in)] {
				in[j], forget[j], out[j] = fromTanh(in[j]), fromTanh(forget[j]), fromTanh(out[j])
				after[j] = forget[j]*x + in[j]*cell[j]
			}
			k.tanh(state, after)
			k.mul(state, state, out)
		}
	})
}

// LSTMCellBackward computes the gradients of a step's gate sums, dgates, and of
// the state before it, dcPrev. The state's gradient is gc + dc, the output's gh +
// dh: what comes from outside and what comes from the next step. dcPrev may be dc.
func LSTMCellBackward(p *work.Pool, dgates, dcPrev, gh, dh, gc, dc, gates, c, cPrev []float32, batch, hidden int) {
	k := vec()
	overItems(p, batch, cellElems*batch*hidden, func(lo, hi int) {
		var buf [256]float32
		for b := lo; b < hi; b++ {
			row, grad := gates[b*4*hidden:(b+1)*4*hidden], dgates[b*4*hidden:(b+1)*4*hidden]
			for from := 0; from < hidden; from += len(buf) {
				n := min(len(buf), hidden-from)
				at := b*hidden + from
				th := buf[:n]
				k.tanh(th, c[at:at+n])
				in, forget, cell, out := row[from:][:n], row[hidden+from:][:n], row[2*hidden+from:][:n], row[3*hidden+from:][:n]
				din, dforget, dcell, dout := grad[from:][:n], grad[hidden+from:][:n], grad[2*hidden+from:][:n], grad[3*hidden+from:][:n]
				gh, dh, gc, dc, dcPrev, cPrev := gh[at:][:n], dh[at:][:n], gc[at:][:n], dc[at:][:n], dcPrev[at:][:n], cPrev[at:][:n]
				for j, t := range th {
					h := gh[j] + dh[j]
					i, f, g, o := in[j], forget[j], cell[j], out[j]
					s := gc[j] + dc[j] + h*o*(1-t*t)
					din[j] = s * g * i * (1 - i)
					dforget[j] = s * cPrev[j] * f * (1 - f)
					dcell[j] = s * i * (1 - g*g)
					dout[j] = h * t * o * (1 - o)
					dcPrev[j] = s * f
				}
			}
		}
	})
}

// GRUCell computes a step of gated recurrent units (Cho et al. 2014, in the form
// of cuDNN and PyTorch). x and s [batch, 3·hidden] are the parts of the sums
// for reset gate, update gate and candidate that come from the input and from the
// state; gates [batch, 4·hidden] get the two gates, the candidate, and the
// state's part of its sum.
func GRUCell(p *work.Pool, h, gates, x, s, hPrev []float32, batch, hidden int) {
	k := vec()
	overItems(p, batch, cellElems*batch*hidden, func(lo, hi int) {
		for b := lo; b < hi; b++ {
			row := gates[b*4*hidden : (b+1)*4*hidden]
			in, state := x[b*3*hidden:(b+1)*3*hidden], s[b*3*hidden:(b+1)*3*hidden]
			k.add(row[:2*hidden], in[:2*hidden], state[:2*hidden])
			halveAndTanh(k, row[:2*hidden], 2*hidden)
			reset, update, cand, part := row[:hidden], row[hidden:2*hidden], row[2*hidden:3*hidden], row[3*hidden:]
			copy(part, state[2*hidden:])
			update, cand, part = update[:len(reset)], cand[:len(reset)], part[:len(reset)]
			for j, v := range in[2*hidden:][:len(reset)] {
				reset[j], update[j] = fromTanh(reset[j]), fromTanh(update[j])
				cand[j] = v + reset[j]*part[j]
			}
			k.tanh(cand, cand)
			after := h[b*hidden:][:len(reset)]
			for j, v := range hPrev[b*hidden:][:len(reset)] {
				after[j] = cand[j] + update[j]*(v-cand[j])
			}
		}
	})
}

// GRUCellBackward computes the gradients of the two parts of a step's sums, dx
// and ds, and the part of the gradient of the state before it that does not come
// through ds. The output's gradient is gh + dh, from outside and from the next step;
// dhPrev may be dh.
func GRUCellBackward(p *work.Pool, dx, ds, dhPrev, gh, dh, gates, hPrev []float32, batch, hidden int) {
	overItems(p, batch, cellElems*batch*hidden, func(lo, hi int) {
		for b := lo; b < hi; b++ {
			row := gates[b*4*hidden : (b+1)*4*hidden]
			reset, update, cand, part := row[:hidden], row[hidden:2*hidden], row[2*hidden:3*hidden], row[3*hidden:]
			gx, gs := dx[b*3*hidden:(b+1)*3*hidden], ds[b*3*hidden:(b+1)*3*hidden]
			n := len(reset)
			update, cand, part = update[:n], cand[:n], part[:n]
			xr, xz, xn := gx[:n], gx[hidden:][:n], gx[2*hidden:][:n]
			sr, sz, sn := gs[:n], gs[hidden:][:n], gs[2*hidden:][:n]
			gh, dh, dhPrev, hPrev := gh[b*hidden:][:n], dh[b*hidden:][:n], dhPrev[b*hidden:][:n], hPrev[b*hidden:][:n]
			for j, r := range reset {
				z, c := update[j], cand[j]
				h := gh[j] + dh[j]
				dc := h * (1 - z) * (1 - c*c)
				dr := dc * part[j] * r * (1 - r)
				dz := h * (hPrev[j] - c) * z * (1 - z)
				xr[j], xz[j], xn[j] = dr, dz, dc
				sr[j], sz[j], sn[j] = dr, dz, dc*r
				dhPrev[j] = h * z
			}
		}
	})
}
