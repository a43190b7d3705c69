// SPDX-License-Identifier: Apache-2.0

// Products of matrices: tiles of 64×64 by 256 threads, which have 4×4 each. A matrix may lie
// by rows or by columns. With low, operands are rounded to bfloat16; sums are float32.

struct matrix {
	const void *p;
	long long type, row, col; // strides
};

__device__ float element(const matrix &m, long long batch, long long i, long long j, int low) {
	float v = load_float(m.p, (int)m.type, batch + i * m.row + j * m.col);
	return low && m.type == F32 ? from_bf16(to_bf16(v)) : v;
}

extern "C" __global__ void __launch_bounds__(256) matmul(void *y, int ytype, matrix a, matrix b, const float *bias, float beta, int low, layout batches, long long numBatches, long long m, long long n, long long k) {
	__shared__ float as[16][64 + 4], bs[16][64 + 4];
	int t = threadIdx.x, tx = t % 16, ty = t / 16;
	long long i0 = blockIdx.y * 64ll, j0 = blockIdx.x * 64ll;
	for (long long batch = blockIdx.z; batch < numBatches; batch += gridDim.z) {
		long long atA = offset(batches, 0, batch), atB = offset(batches, 1, batch);
		float sum[4][4] = {};
		for (long long p = 0; p < k; p += 16) {
			for (int e = t; e < 64 * 16; e += 256) {
				// Neighbouring threads read neighbouring elements.
				int q = a.col == 1 ? e % 16 : e / 64, i = a.col == 1 ? e / 16 : e % 64;
				as[q][i] = i0 + i < m && p + q < k ? element(a, atA, i0 + i, p + q, low) : 0.f;
				int r = b.col == 1 ? e / 64 : e % 16, j = b.col == 1 ? e % 64 : e / 16;
				bs[r][j] = j0 + j < n && p + r < k ? element(b, atB, p + r, j0 + j, low) : 0.f;
			}
			__syncthreads();
			for (int q = 0; q < 16; q++)
#pragma unroll
				for (int i = 0; i < 4; i++)
#pragma unroll
					for (int j = 0; j < 4; j++) sum[i][j] += as[q][ty * 4 + i] * bs[q][tx * 4 + j];
			__syncthreads();
		}
#pragma unroll
		for (int i = 0; i < 4; i++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				long long r = i0 + ty * 4 + i, c = j0 + tx * 4 + j, at = batch * m * n + r * n + c;
				if (r >= m || c >= n) continue;
				float v = sum[i][j];
				if (beta != 0) v += beta * load_float(y, ytype, at);
				if (bias) v += bias[c];
				store_float(y, ytype, at, v);
			}
	}
}
