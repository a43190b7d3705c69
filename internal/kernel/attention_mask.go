// SPDX-License-Identifier: Apache-2.0

package kernel

// What masks and dropout do to rows of scores between the products. Rows are
// stride elements apart; row r belongs to query first+r of head h of batch
// entry b.

// capScores bounds the scores that are seen by SoftCap. slopes, if it is not nil, gets the
// derivative at each, for capGradients.
func (x *attention) capScores(scores, slopes []float32, stride, first, rows int) {
	if x.SoftCap == 0 {
		return
	}
	for r := range rows {
		row := scores[r*stride:][:x.visible(first+r)]
		vec().mulScalar(row, row, 1/x.SoftCap)
		vec().tanh(row, row)
		if slopes != nil {
			slope := slopes[r*stride:][:len(row)]
			vec().mul(slope, row, row)
			vec().mulScalar(slope, slope, -1)
			vec().addScalar(slope, slope, 1)
		}
		vec().mulScalar(row, row, x.SoftCap)
	}
}

// capGradients takes gradients of bounded scores to those of the scores.
func (x *attention) capGradients(g, slopes []float32, stride, first, rows int) {
	if x.SoftCap == 0 {
		return
	}
	for r := range rows {
		row := g[r*stride:][:x.visible(first+r)]
		vec().mul(row, row, slopes[r*stride:][:len(row)])
	}
}

// addMask adds the mask to the scores that are seen.
func (x *attention) addMask(scores []float32, stride, b, h, first, rows int) {
	m := &x.Mask
	if m.Data == nil {
		return
	}
	for r := range rows {
		n := x.visible(first + r)
		row := scores[r*stride:][:n]
		vec().add(row, row, m.Data[b*m.Batch+h*m.Head+(first+r)*m.Time:][:n])
	}
}

// clearUnseen zeroes the rows of queries that see no key, up to end: there the
// exponentials are of -Inf - -Inf. Only a mask makes such rows.
func (x *attention) clearUnseen(p, g []float32, stride, end int, lse []float32) {
	if x.Mask.Data == nil {
		return
	}
	for r, l := range lse {
		if l == negInf {
			clear(p[r*stride:][:end])
			clear(g[r*stride:][:end])
		}
	}
}

// kept fills keep with what dropout multiplies the probabilities of query t by:
// 0 or 1/(1-Dropout).
func (x *attention) kept(keep []float32, b, h, t int) {
	DropoutScales(keep, x.Random, x.Stream, x.place(b, h, t), x.Dropout)
}

// dropRows applies dropout to rows of probabilities; keep is scratch of a row.
func (x *attention) dropRows(p []float32, stride, b, h, first, rows int, keep []float32) {
	if x.Dropout == 0 {
		return
	}
	for r := range rows {
		n := x.visible(first + r)
		x.kept(keep[:n], b, h, first+r)
		vec().mul(p[r*stride:][:n], p[r*stride:][:n], keep[:n])
	}
}

// dropGradients applies dropout to the gradients of the probabilities and keeps
// the factors for dropAgain, which applies them to the probabilities.
func (x *attention) dropGradients(g, keep []float32, stride, b, h, first, rows int) {
	if x.Dropout == 0 {
		return
	}
	for r := range rows {
		n := x.visible(first + r)
		row := keep[r*stride:][:x.KeyTime]
		x.kept(row[:n], b, h, first+r)
		clear(row[n:])
		vec().mul(g[r*stride:][:n], g[r*stride:][:n], row[:n])
	}
}

func (x *attention) dropAgain(p, keep []float32, stride, rows int) {
	if x.Dropout == 0 {
		return
	}
	for r := range rows {
		vec().mul(p[r*stride:][:x.KeyTime], p[r*stride:][:x.KeyTime], keep[r*stride:][:x.KeyTime])
	}
}
