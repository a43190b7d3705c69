// SPDX-License-Identifier: Apache-2.0

// What all kernels have in common. It is put before each source. There is no header of the
// vendor's: what has sixteen bits is made of integers.

// Numbers of dtypes, as in internal/device.
enum dtype { F32 = 1, I64 = 2, BF16 = 3, F16 = 4, F64 = 5, I32 = 6, I8 = 7, U8 = 8, BOOL = 9 };

#define MAX_DIMS 8

// layout says where the elements of up to four operands lie: strides are in elements.
struct layout {
	long long ndim;
	long long shape[MAX_DIMS];
	long long stride[4][MAX_DIMS];
};

// offset returns where element number i of an operand lies, in row-major order of the shape.
__device__ long long offset(const layout &l, int operand, long long i) {
	long long at = 0;
	for (int d = (int)l.ndim - 1; d > 0; d--) {
		at += i % l.shape[d] * l.stride[operand][d];
		i /= l.shape[d];
	}
	return at + i * l.stride[operand][0];
}

__device__ float from_bf16(unsigned short h) { return __uint_as_float((unsigned)h << 16); }

__device__ unsigned short to_bf16(float f) { // to the nearest, ties to even
	unsigned u = __float_as_uint(f);
	if ((u & 0x7fffffffu) > 0x7f800000u) return (unsigned short)(u >> 16 | 64);
	return (unsigned short)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

__device__ float from_f16(unsigned short h) {
	unsigned sign = (unsigned)(h & 0x8000) << 16, bits = h & 0x7fff;
	if (bits >= 0x7c00) return __uint_as_float(sign | 0x7f800000u | (bits & 0x3ff) << 13);
	if (bits >= 0x0400) return __uint_as_float(sign | ((bits << 13) + (112u << 23)));
	float f = (float)bits * 5.9604644775390625e-8f; // 2⁻²⁴
	return sign ? -f : f;
}

__device__ unsigned short to_f16(float f) {
	unsigned u = __float_as_uint(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;
	if (a > 0x7f800000u) return (unsigned short)(sign | 0x7e00 | (a >> 13 & 0x3ff));
	if (a >= 0x477ff000u) return (unsigned short)(sign | 0x7c00);
	if (a < 0x38800000u) { // below 2⁻¹⁴: adding 1/2 rounds to multiples of 2⁻²⁴
		float r = __uint_as_float(a) + 0.5f;
		return (unsigned short)(sign | (__float_as_uint(r) - 0x3f000000u));
	}
	return (unsigned short)(sign | ((a + 0xfffu + (a >> 13 & 1) - 0x38000000u) >> 13));
}

__device__ float load_float(const void *p, int type, long long i) {
	switch (type) {
	case BF16: return from_bf16(((const unsigned short *)p)[i]);
	case F16: return from_f16(((const unsigned short *)p)[i]);
	}
	return ((const float *)p)[i];
}

__device__ void store_float(void *p, int type, long long i, float v) {
	switch (type) {
	case BF16: ((unsigned short *)p)[i] = to_bf16(v); return;
	case F16: ((unsigned short *)p)[i] = to_f16(v); return;
	}
	((float *)p)[i] = v;
}

// fault is the pinned word of the device; faultRecord of pinned.go has its layout.
struct fault {
	unsigned state, op;
	unsigned long long site;
	long long position, value;
};

// note writes down the first fault. A null f notes nothing.
__device__ void note(fault *f, unsigned op, unsigned long long site, long long position, long long value) {
	if (!f || atomicCAS(&f->state, 0u, 1u) != 0u) return;
	f->op = op, f->site = site, f->position = position, f->value = value;
	__threadfence_system();
	atomicExch(&f->state, 2u);
}

#define INDEX (blockIdx.x * (long long)blockDim.x + threadIdx.x)
#define STEP (gridDim.x * (long long)blockDim.x)
#define EACH(i, n) for (long long i = INDEX; i < (n); i += STEP)

// A row is done by a warp: blocks have whole warps.
#define LANE (threadIdx.x % 32)
#define ROW (blockIdx.x * (long long)(blockDim.x / 32) + threadIdx.x / 32)

#define INFINITE __uint_as_float(0x7f800000u)

__device__ float warp_sum(float v) {
	for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
	return v;
}
__device__ double warp_sum(double v) {
	for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffffu, v, d);
	return v;
}
// The larger of two, or the one that is NaN.
template <class T> __device__ T larger(T a, T b) { return a != a || a > b ? a : b; }
template <class T> __device__ T smaller(T a, T b) { return a != a || a < b ? a : b; }
__device__ float warp_max(float v) {
	for (int d = 16; d > 0; d /= 2) v = larger(v, __shfl_xor_sync(0xffffffffu, v, d));
	return v;
}
