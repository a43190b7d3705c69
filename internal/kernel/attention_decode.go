// SPDX-License-Identifier: Apache-2.0

package kernel

// fewQueries is up to how many queries keys and values are read where they lie:
// packing them would cost more than the products do. A model that generates
// token by token has one query and a cache of keys.
const fewQueries = 3

// directValues tells whether tiles may read the values where they lie: AVX2's
// read whole registers, beyond the end of the last row if Dim is not a multiple
// of the tile's width.
func directValues(s *AttentionShape) bool {
	_, nr, _ := tileShape()
	return useISA == avx512 || s.Dim%nr == 0
}

// decode does task i for few queries: time in proportion to the keys.
func (x *attention) decode(i int) {
	s, out, q, k, v := &x.AttentionShape, &x.out, &x.q, &x.k, &x.v
	b, h0, hk := x.task(i)
	_, nr, _ := tileShape()
	pad := roundUp(s.KeyTime, nr)
	mem := scratchList.get(2 * pad)
	defer scratchList.put(mem)
	scores, keep := mem.floats[:pad], mem.floats[pad:2*pad]
	// A call of assembly reads at most this many keys.
	most := max(1, callElems/s.Dim)
	var top, sum [fewQueries]float32
	for h := h0; h < h0+x.span; h++ {
		for t := range s.Time {
			visible := s.visible(t)
			query := &q.Data[q.base(b, h)+t*q.Time]
			for j := 0; j < visible; j += most {
				dotRows(&scores[j], query, 0, &k.Data[k.base(b, hk)+j*k.Time], k.Time, min(most, visible-j), s.Dim)
			}
			row := scores[:visible]
			vec().mulScalar(row, row, s.Scale)
			x.capScores(scores, nil, 0, t, 1)
			x.addMask(scores, 0, b, h, t, 1)
			softmaxRows(&scores[0], pad, 1, visible, 0, roundUp(visible, nr), &top[t], &sum[t])
			vec().mulScalar(row, row, x.weight(row, top[t], &sum[t]))
			x.dropRows(scores, 0, b, h, t, 1, keep)
			to, from := out.base(b, h)+t*out.Time, v.base(b, hk)
			if visible == 0 {
				clear(out.Data[to:][:s.Dim])
			}
			for j := 0; j < visible; j += most {
				beta := float32(min(j, 1))
				for d := 0; d < s.Dim; d += nr {
					tile(1, min(nr, s.Dim-d), min(most, visible-j), &scores[j], 0, 1, &v.Data[from+j*v.Time+d], v.Time, &out.Data[to+d], out.Time, 1, beta, nil)
				}
			}
		}
		x.keepLSE(b, h, top[:], sum[:])
	}
}
