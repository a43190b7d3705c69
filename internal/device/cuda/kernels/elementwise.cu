// SPDX-License-Identifier: Apache-2.0

// Elementwise primitives. There is a kernel for each type that is computed in; the operation
// is a parameter, which all threads share. Its numbers are those of internal/device.

enum unary_op { NEG, EXP, LOG, SQRT, RECIPROCAL, TANH, ERF, RELU, GELU, GELU_TANH, ABS, SQUARE, RSQRT, SIN, COS, LOG1P, EXPM1, SIGN, FLOOR, CEIL, ROUND, SIGMOID, SILU, NOT, IS_NAN, IS_INF, IS_FINITE };
enum binary_op { ADD, SUB, MUL, DIV, RELU_GRAD, GELU_GRAD, GELU_TANH_GRAD, SIGMOID_GRAD, SILU_GRAD, POW, MAXIMUM, MINIMUM, EQ, NE, LT, LE, GT, GE, AND, OR, XOR };

__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }
__device__ double sigmoid(double x) { return 1 / (1 + exp(-x)); }

// Twice the argument of the hyperbolic tangent in GELU's approximation.
template <class T> __device__ T gelu_inner(T x) { return (T)1.5957691216057308 * (x + (T)0.044715 * x * x * x); }

__device__ float unary_real(int op, float x) {
	switch (op) {
	case EXP: return expf(x);
	case LOG: return logf(x);
	case SQRT: return sqrtf(x);
	case TANH: return tanhf(x);
	case ERF: return erff(x);
	case GELU: return x < -40 ? 0 : x * 0.5f * erfcf(-x * 0.70710678118654752f);
	case GELU_TANH: return x < -40 ? 0 : x * sigmoid(gelu_inner(x));
	case RSQRT: return 1 / sqrtf(x);
	case SIN: return sinf(x);
	case COS: return cosf(x);
	case LOG1P: return log1pf(x);
	case EXPM1: return expm1f(x);
	case FLOOR: return floorf(x);
	case CEIL: return ceilf(x);
	case ROUND: return rintf(x);
	case SIGMOID: return sigmoid(x);
	case SILU: return x < -100 ? 0 : x * sigmoid(x);
	}
	return 1 / x;
}
__device__ double unary_real(int op, double x) {
	switch (op) {
	case EXP: return exp(x);
	case LOG: return log(x);
	case SQRT: return sqrt(x);
	case TANH: return tanh(x);
	case ERF: return erf(x);
	case GELU: return x < -40 ? 0 : x * 0.5 * erfc(-x * 0.70710678118654752440);
	case GELU_TANH: return x < -40 ? 0 : x * sigmoid(gelu_inner(x));
	case RSQRT: return 1 / sqrt(x);
	case SIN: return sin(x);
	case COS: return cos(x);
	case LOG1P: return log1p(x);
	case EXPM1: return expm1(x);
	case FLOOR: return floor(x);
	case CEIL: return ceil(x);
	case ROUND: return rint(x);
	case SIGMOID: return sigmoid(x);
	case SILU: return x < -800 ? 0 : x * sigmoid(x);
	}
	return 1 / x;
}
__device__ long long unary_real(int, long long) { return 0; } // integers have none of them

__device__ float slope(int op, float x) {
	switch (op) {
	case GELU_GRAD: return x > 40 ? 1 : x < -40 ? 0 : 0.5f * erfcf(-x * 0.70710678118654752f) + x * expf(-0.5f * x * x) * 0.3989422804014327f;
	case GELU_TANH_GRAD: {
		x = fmaxf(fminf(x, 40), -40);
		float s = sigmoid(gelu_inner(x));
		return s + x * s * (1 - s) * 1.5957691216057308f * (1 + 0.134145f * x * x);
	}
	}
	x = fmaxf(fminf(x, 80), -80);
	float s = sigmoid(x);
	return s * (1 + x * (1 - s));
}
__device__ double slope(int op, double x) {
	switch (op) {
	case GELU_GRAD: return x > 40 ? 1 : x < -40 ? 0 : 0.5 * erfc(-x * 0.70710678118654752440) + x * exp(-0.5 * x * x) * 0.39894228040143267794;
	case GELU_TANH_GRAD: {
		x = fmax(fmin(x, 40), -40);
		double s = sigmoid(gelu_inner(x));
		return s + x * s * (1 - s) * 1.5957691216057308 * (1 + 0.134145 * x * x);
	}
	}
	x = fmax(fmin(x, 700), -700);
	double s = sigmoid(x);
	return s * (1 + x * (1 - s));
}
__device__ long long slope(int, long long) { return 0; }

__device__ float power(float x, float y) { return powf(x, y); }
__device__ double power(double x, double y) { return pow(x, y); }
// power of integers wraps around; of a negative power only 1 and -1 leave an integer.
template <class T> __device__ T power(T x, T y) {
	if (y < 0) return x == 1 ? 1 : (T)(x + 1) == 0 ? (y % 2 == 0 ? (T)1 : x) : (T)0;
	T out = 1;
	for (; y > 0; y /= 2) {
		if (y % 2 == 1) out = (T)((unsigned long long)out * (unsigned long long)x);
		x = (T)((unsigned long long)x * (unsigned long long)x);
	}
	return out;
}

// real is the type that functions of real numbers are computed in.
template <class T> struct real { typedef long long type; };
template <> struct real<float> { typedef float type; };
template <> struct real<double> { typedef double type; };

template <class T> __device__ T unary_value(int op, T x) {
	switch (op) {
	case NEG: return -x;
	case RELU: return x != x || x > 0 ? x : (T)0;
	case ABS: return x < 0 || x == 0 ? (T)(0 - x) : x;
	case SQUARE: return x * x;
	case SIGN: return x > 0 ? (T)1 : x < 0 ? (T)-1 : (T)0;
	}
	return (T)unary_real(op, (typename real<T>::type)x);
}
template <class T> __device__ bool unary_test(int op, T x) {
	switch (op) {
	case NOT: return x == 0;
	case IS_NAN: return x != x;
	case IS_INF: return x == x && x - x != x - x;
	}
	return x - x == x - x;
}
template <class T> __device__ T binary_value(int op, T x, T y) {
	switch (op) {
	case ADD: return x + y;
	case SUB: return x - y;
	case MUL: return x * y;
	case DIV: return y == 0 && (T)0.5 == 0 ? (T)0 : x / y;
	case RELU_GRAD: return x > 0 ? y : (T)0;
	case SIGMOID_GRAD: return x * (1 - x) * y;
	case POW: return power(x, y);
	case MAXIMUM: return larger(x, y);
	case MINIMUM: return smaller(x, y);
	}
	return (T)slope(op, (typename real<T>::type)x) * y;
}
template <class T> __device__ bool binary_test(int op, T x, T y) {
	switch (op) {
	case EQ: return x == y;
	case NE: return x != y;
	case LT: return x < y;
	case LE: return x <= y;
	case GT: return x > y;
	case GE: return x >= y;
	case AND: return x != 0 && y != 0;
	case OR: return x != 0 || y != 0;
	}
	return (x != 0) != (y != 0);
}

// load and store of the type that is computed in; what has sixteen bits is computed as float.
template <class T> __device__ T load(const void *p, int, long long i) { return ((const T *)p)[i]; }
template <> __device__ float load<float>(const void *p, int type, long long i) { return load_float(p, type, i); }
template <class T> __device__ void store(void *p, int, long long i, T v) { ((T *)p)[i] = v; }
template <> __device__ void store<float>(void *p, int type, long long i, float v) { store_float(p, type, i, v); }

// A binary function without b takes s in its place.
#define ELEMENTWISE(name, T) \
	extern "C" __global__ void unary_##name(void *y, int ytype, const void *x, int xtype, int op, layout l, long long n) { \
		EACH(i, n) { \
			T v = load<T>(x, xtype, offset(l, 0, i)); \
			if (op >= NOT) ((unsigned char *)y)[i] = unary_test<T>(op, v); \
			else store<T>(y, ytype, i, unary_value<T>(op, v)); \
		} \
	} \
	extern "C" __global__ void binary_##name(void *y, int ytype, const void *a, int atype, const void *b, int btype, double s, int op, layout l, long long n) { \
		EACH(i, n) { \
			T v = load<T>(a, atype, offset(l, 0, i)), w = b ? load<T>(b, btype, offset(l, 1, i)) : (T)s; \
			if (op >= EQ) ((unsigned char *)y)[i] = binary_test<T>(op, v, w); \
			else store<T>(y, ytype, i, binary_value<T>(op, v, w)); \
		} \
	} \
	extern "C" __global__ void axpy_##name(void *y, const void *x, int type, double alpha, long long n) { \
		EACH(i, n) store<T>(y, type, i, load<T>(y, type, i) + (T)alpha * load<T>(x, type, i)); \
	}
ELEMENTWISE(float, float)
ELEMENTWISE(double, double)
ELEMENTWISE(i64, long long)
ELEMENTWISE(i32, int)
ELEMENTWISE(i8, signed char)
ELEMENTWISE(u8, unsigned char)

__device__ bool is_integer(int type) { return type == I64 || type >= I32; }

__device__ long long load_integer(const void *p, int type, long long i) {
	switch (type) {
	case I64: return ((const long long *)p)[i];
	case I32: return ((const int *)p)[i];
	case I8: return ((const signed char *)p)[i];
	}
	return ((const unsigned char *)p)[i];
}
__device__ void store_integer(void *p, int type, long long i, long long v) {
	switch (type) {
	case I64: ((long long *)p)[i] = v; return;
	case I32: ((int *)p)[i] = (int)v; return;
	case I8: ((signed char *)p)[i] = (signed char)v; return;
	case U8: ((unsigned char *)p)[i] = (unsigned char)v; return;
	}
	((unsigned char *)p)[i] = v != 0;
}
__device__ void store_real(void *p, int type, long long i, double v) {
	if (type == F64) ((double *)p)[i] = v;
	else if (type == BOOL) ((unsigned char *)p)[i] = v != 0;
	else if (is_integer(type)) store_integer(p, type, i, (long long)v);
	else store_float(p, type, i, (float)v);
}

// copy converts elements. Operand 0 of the layout is y, operand 1 is x.
extern "C" __global__ void copy(void *y, int ytype, const void *x, int xtype, layout l, long long n) {
	EACH(i, n) {
		long long to = offset(l, 0, i), from = offset(l, 1, i);
		if (is_integer(xtype)) {
			long long v = load_integer(x, xtype, from);
			if (is_integer(ytype)) store_integer(y, ytype, to, v);
			else store_real(y, ytype, to, (double)v);
		} else store_real(y, ytype, to, xtype == F64 ? ((const double *)x)[from] : (double)load_float(x, xtype, from));
	}
}

extern "C" __global__ void fill(void *y, int type, double value, layout l, long long n) {
	EACH(i, n) store_real(y, type, offset(l, 0, i), value);
}

// where copies elements of a size in bytes. The operands of the layout are the condition, a, b.
extern "C" __global__ void where(void *y, const unsigned char *c, const void *a, const void *b, int size, layout l, long long n) {
	EACH(i, n) {
		bool yes = c[offset(l, 0, i)] != 0;
		const void *p = yes ? a : b;
		long long at = offset(l, yes ? 1 : 2, i);
		switch (size) {
		case 8: ((long long *)y)[i] = ((const long long *)p)[at]; break;
		case 4: ((int *)y)[i] = ((const int *)p)[at]; break;
		case 2: ((short *)y)[i] = ((const short *)p)[at]; break;
		default: ((char *)y)[i] = ((const char *)p)[at];
		}
	}
}

// causal_mask copies matrices of keys behind queries, and sets what lies after the query.
extern "C" __global__ void causal_mask(float *y, const float *x, float value, long long queries, long long keys, long long n) {
	EACH(i, n) y[i] = i % keys > i / keys % queries + keys - queries ? value : x[i];
}
