// SPDX-License-Identifier: Apache-2.0

package kernel

import "math"

var portableTransformer = transformerKernels{
	rmsNorm: rmsNormGo, rmsNormBackward: rmsNormBackwardGo,
	swiGLU: swiGLUGo, swiGLUBackward: swiGLUBackwardGo, rotate: rotateGo,
	prefetch: func(*float32, int, int, int) {},
}

func rmsNormGo(dst, rstd, x, weight []float32, eps float32) {
	cols := len(weight)
	for r := range rstd {
		row, out := x[r*cols:(r+1)*cols], dst[r*cols:(r+1)*cols]
		s := float32(1 / math.Sqrt(sumSquaresGo(row)/float64(cols)+float64(eps)))
		rstd[r] = s
		for c, v := range row {
			out[c] = v * s * weight[c]
		}
	}
}

func rmsNormBackwardGo(dx, dweight, g, x, rstd, weight []float32) {
	cols := len(weight)
	dweight = dweight[:cols]
	for r, s := range rstd {
		gr, row, out := g[r*cols:(r+1)*cols], x[r*cols:(r+1)*cols], dx[r*cols:(r+1)*cols]
		var sum float64
		for c, v := range gr {
			xhat := row[c] * s
			dweight[c] += v * xhat
			sum += float64(v*weight[c]) * float64(xhat)
		}
		c2 := float32(sum / float64(cols))
		for c, v := range gr {
			out[c] = s * (v*weight[c] - row[c]*s*c2)
		}
	}
}

func logisticGo(x float32) float32 { return float32(1 / (1 + math.Exp(-float64(x)))) }

func swiGLUGo(dst, gate, up []float32) {
	for i, x := range gate {
		dst[i] = x * logisticGo(x) * up[i]
	}
}

func swiGLUBackwardGo(dgate, dup, gate, up, g []float32) {
	for i, x := range gate {
		s, u, d := logisticGo(x), up[i], g[i]
		value := x * s
		dgate[i], dup[i] = d*u*(s+value*(1-s)), d*value
	}
}

func rotateGo(dst, x, cos, sin []float32, heads, dstStep, xStep int, sign float32) {
	half := len(cos)
	sin = sin[:half]
	for h := range heads {
		from, to := x[h*xStep:][:2*half], dst[h*dstStep:][:2*half]
		for i, c := range cos {
			a, b, s := from[i], from[i+half], sin[i]*sign
			to[i], to[i+half] = a*c-b*s, b*c+a*s
		}
	}
}
