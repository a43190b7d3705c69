// SPDX-License-Identifier: Apache-2.0

// Functions of activations, gates, rotations, dropout, and lists of arrays.

enum function { LOG_SIGMOID, LEAKY_RELU, ELU, SOFTPLUS, HARDTANH, HARDSIGMOID, HARDSWISH, MISH };

__device__ double logistic(double x) { return 1 / (1 + exp(-x)); }

__device__ double function_of(int f, double x, double a, double b) {
	switch (f) {
	case LOG_SIGMOID: return fmin(x, 0) - log1p(exp(-fabs(x)));
	case LEAKY_RELU: return x > 0 ? x : a * x;
	case ELU: return x > 0 ? b * x : b * a * expm1(x);
	case SOFTPLUS: return a * x > b ? x : log1p(exp(a * x)) / a;
	case HARDTANH: return fmin(fmax(x, a), b);
	case HARDSIGMOID: return fmin(fmax(x / 6 + 0.5, 0), 1);
	case HARDSWISH: return x * fmin(fmax(x / 6 + 0.5, 0), 1);
	}
	return x * tanh(x > 30 ? x : log1p(exp(x)));
}

__device__ double slope_of(int f, double x, double a, double b) {
	switch (f) {
	case LOG_SIGMOID: return logistic(-x);
	case LEAKY_RELU: return x > 0 ? 1 : a;
	case ELU: return x > 0 ? b : b * a * exp(x);
	case SOFTPLUS: return a * x > b ? 1 : logistic(a * x);
	case HARDTANH: return x <= a || x >= b ? 0 : 1;
	case HARDSIGMOID: return x > -3 && x < 3 ? 1.0 / 6 : 0;
	case HARDSWISH: return x <= -3 ? 0 : x >= 3 ? 1 : x / 3 + 0.5;
	}
	double t = tanh(x > 30 ? x : log1p(exp(x)));
	return t + x * (1 - t * t) * logistic(x);
}

extern "C" __global__ void pointwise(void *y, const void *x, int type, int f, int slope, double a, double b, long long n) {
	EACH(i, n) {
		double v = type == F64 ? ((const double *)x)[i] : (double)load_float(x, type, i);
		v = v != v ? v : slope ? slope_of(f, v, a, b) : function_of(f, v, a, b);
		if (type == F64) ((double *)y)[i] = v;
		else store_float(y, type, i, (float)v);
	}
}

extern "C" __global__ void swiglu(void *y, const void *gate, const void *up, int type, long long n) {
	EACH(i, n) {
		float x = load_float(gate, type, i);
		store_float(y, type, i, (x < -100 ? 0 : x / (1 + expf(-x))) * load_float(up, type, i));
	}
}

extern "C" __global__ void swiglu_grad(void *dgate, void *dup, const void *gate, const void *up, const void *g, int type, long long n) {
	EACH(i, n) {
		float x = fmaxf(load_float(gate, type, i), -100), s = 1 / (1 + expf(-x)), d = load_float(g, type, i);
		store_float(dgate, type, i, d * load_float(up, type, i) * s * (1 + x * (1 - s)));
		store_float(dup, type, i, d * x * s);
	}
}

extern "C" __global__ void rms_norm(void *y, float *rstd, const void *x, int type, const float *weight, float eps, long long rows, long long cols) {
	long long row = ROW, at = row * cols;
	if (row >= rows) return;
	float squares = 0;
	for (long long i = LANE; i < cols; i += 32) {
		float v = load_float(x, type, at + i);
		squares += v * v;
	}
	float r = 1 / sqrtf(warp_sum(squares) / cols + eps);
	for (long long i = LANE; i < cols; i += 32) store_float(y, type, at + i, load_float(x, type, at + i) * r * (weight ? weight[i] : 1));
	if (LANE == 0) rstd[row] = r;
}

extern "C" __global__ void rms_norm_grad(void *dx, const void *g, const void *x, int type, const float *rstd, const float *weight, long long rows, long long cols) {
	long long row = ROW, at = row * cols;
	if (row >= rows) return;
	float r = rstd[row], a = 0;
	for (long long i = LANE; i < cols; i += 32) a += load_float(g, type, at + i) * (weight ? weight[i] : 1) * load_float(x, type, at + i) * r;
	a = warp_sum(a) / cols;
	for (long long i = LANE; i < cols; i += 32) store_float(dx, type, at + i, r * (load_float(g, type, at + i) * (weight ? weight[i] : 1) - load_float(x, type, at + i) * r * a));
}

extern "C" __global__ void rms_norm_params(float *dweight, const void *g, const void *x, int type, const float *rstd, long long rows, long long cols) {
	long long col = ROW;
	if (col >= cols) return;
	float a = 0;
	for (long long i = LANE; i < rows; i += 32) a += load_float(g, type, i * cols + col) * load_float(x, type, i * cols + col) * rstd[i];
	a = warp_sum(a);
	if (LANE == 0) dweight[col] = a;
}

// rope turns pairs of channels. Operands 0 and 1 of the layout are y and x, of the shape
// [batch, time, heads, dim/2]; operand 2 is the tables. The second channel of a pair lies half
// of the channels further.
extern "C" __global__ void rope(void *y, const void *x, int type, const float *cosines, const float *sines, float sign, layout l, long long half, long long n) {
	EACH(i, n) {
		long long to = offset(l, 0, i), from = offset(l, 1, i), at = offset(l, 2, i);
		float c = cosines[at], s = sign * sines[at], a = load_float(x, type, from), b = load_float(x, type, from + half);
		store_float(y, type, to, a * c - b * s);
		store_float(y, type, to + half, b * c + a * s);
	}
}

// A block of four words of Philox 4x32-10.
__device__ void philox(unsigned long long key, unsigned long long stream, unsigned long long block, unsigned w[4]) {
	unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32), c0 = (unsigned)block, c1 = (unsigned)(block >> 32), c2 = (unsigned)stream, c3 = (unsigned)(stream >> 32);
	for (int i = 0; i < 10; i++) {
		unsigned h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0, h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
		c0 = h1 ^ c1 ^ k0, c1 = l1, c2 = h0 ^ c3 ^ k1, c3 = l0;
		k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
	}
	w[0] = c0, w[1] = c1, w[2] = c2, w[3] = c3;
}

// dropout_mask draws bits: a thread makes a byte.
extern "C" __global__ void dropout_mask(unsigned char *mask, unsigned long long key, unsigned long long stream, unsigned keep, long long n) {
	EACH(i, (n + 7) / 8) {
		unsigned w[8], bits = 0;
		philox(key, stream, 2 * i, w);
		philox(key, stream, 2 * i + 1, w + 4);
		for (int j = 0; j < 8; j++)
			if (8 * i + j < n && w[j] < keep) bits |= 1u << j;
		mask[i] = (unsigned char)bits;
	}
}

extern "C" __global__ void dropout(float *y, const float *x, const unsigned char *mask, float scale, long long n) {
	EACH(i, n) y[i] = x[i] * (mask[i / 8] >> i % 8 & 1 ? scale : 0.f);
}

extern "C" __global__ void lerp(float *y, const float *x, float weight, long long n) {
	EACH(i, n) y[i] += (x[i] - y[i]) * weight;
}

extern "C" __global__ void swap(float *a, float *b, long long n) {
	EACH(i, n) {
		float v = a[i];
		a[i] = b[i], b[i] = v;
	}
}

extern "C" __global__ void clamp(float *x, float limit, long long n) {
	EACH(i, n) x[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];
}
