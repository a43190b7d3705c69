// SPDX-License-Identifier: Apache-2.0

// Reductions. A warp makes each result, in an order that depends on the sizes alone.

enum reduction { SUM, MAX, MIN, PROD };

template <class T> __device__ T combine(int op, T a, T b) {
	switch (op) {
	case SUM: return a + b;
	case MAX: return larger(a, b);
	case MIN: return smaller(a, b);
	}
	return a * b;
}

// A lane without elements has nothing to combine. Operand 0 of the layouts is x: kept has the
// dims that stay, gone those that are combined.
#define REDUCE(name, T) \
	extern "C" __global__ void reduce_##name(T *y, const T *x, int op, layout kept, layout gone, long long n, long long size) { \
		long long row = ROW; \
		if (row >= n) return; \
		x += offset(kept, 0, row); \
		T v = 0; \
		bool any = false; \
		for (long long i = LANE; i < size; i += 32) { \
			T e = x[offset(gone, 0, i)]; \
			v = any ? combine<T>(op, v, e) : e; \
			any = true; \
		} \
		for (int d = 16; d > 0; d /= 2) { \
			T e = __shfl_xor_sync(0xffffffffu, v, d); \
			bool other = __shfl_xor_sync(0xffffffffu, (int)any, d); \
			if (other) v = any ? combine<T>(op, v, e) : e; \
			any = any || other; \
		} \
		if (LANE == 0) y[row] = v; \
	}
REDUCE(float, float)
REDUCE(double, double)
REDUCE(i64, long long)
REDUCE(i32, int)
REDUCE(i8, signed char)
REDUCE(u8, unsigned char)

// Whether a value at a place is found before another: NaN first, then by value, then the
// first place.
template <class T> __device__ bool before(int op, T v, long long at, T w, long long other) {
	bool vn = v != v, wn = w != w;
	if (vn || wn) return vn && (!wn || at < other);
	if (v == w) return at < other;
	return (v > w) == (op == MAX);
}

template <class T> __device__ T value_of(const void *x, int, long long i) { return ((const T *)x)[i]; }
template <> __device__ float value_of<float>(const void *x, int type, long long i) { return load_float(x, type, i); }

#define ARG_REDUCE(name, T) \
	extern "C" __global__ void arg_reduce_##name(long long *y, const void *x, int type, int op, long long size, long long inner, long long n) { \
		long long row = ROW; \
		if (row >= n) return; \
		long long start = row / inner * size * inner + row % inner; \
		T v = 0; \
		long long at = -1; \
		for (long long i = LANE; i < size; i += 32) { \
			T e = value_of<T>(x, type, start + i * inner); \
			if (at < 0 || before<T>(op, e, i, v, at)) v = e, at = i; \
		} \
		for (int d = 16; d > 0; d /= 2) { \
			T e = __shfl_xor_sync(0xffffffffu, v, d); \
			long long i = __shfl_xor_sync(0xffffffffu, at, d); \
			if (i >= 0 && (at < 0 || before<T>(op, e, i, v, at))) v = e, at = i; \
		} \
		if (LANE == 0) y[row] = at; \
	}
ARG_REDUCE(float, float)
ARG_REDUCE(double, double)
ARG_REDUCE(i64, long long)
ARG_REDUCE(i32, int)
ARG_REDUCE(i8, signed char)
ARG_REDUCE(u8, unsigned char)

// sum_squares writes a sum of part of the squares for each warp.
extern "C" __global__ void sum_squares(double *y, const float *x, long long n) {
	double v = 0;
	EACH(i, n) v += (double)x[i] * x[i];
	v = warp_sum(v);
	if (LANE == 0) y[ROW] = v;
}

// sum_doubles adds them up, with one warp.
extern "C" __global__ void sum_doubles(double *y, const double *x, long long n) {
	double v = 0;
	for (long long i = LANE; i < n; i += 32) v += x[i];
	v = warp_sum(v);
	if (LANE == 0) *y = v;
}
