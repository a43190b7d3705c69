// SPDX-License-Identifier: Apache-2.0

// Elements and slices by their indices along a dim. Arrays are [outer, size, inner]. What
// does not change a value is copied by its size in bytes. Indices out of range are left out.

__device__ void copy_element(void *y, long long to, const void *x, long long from, int bytes) {
	switch (bytes) {
	case 8: ((long long *)y)[to] = ((const long long *)x)[from]; return;
	case 4: ((int *)y)[to] = ((const int *)x)[from]; return;
	case 2: ((short *)y)[to] = ((const short *)x)[from]; return;
	}
	((char *)y)[to] = ((const char *)x)[from];
}

// The first place of all lanes; -1 is none.
__device__ long long warp_first(long long at) {
	for (int d = 16; d > 0; d /= 2) {
		long long other = __shfl_xor_sync(0xffffffffu, at, d);
		if (other >= 0 && (at < 0 || other < at)) at = other;
	}
	return at;
}

// check_indices is done by one warp, which stops at the first index that is out of range.
extern "C" __global__ void check_indices(const long long *ids, long long limit, fault *f, unsigned op, unsigned long long site, long long n) {
	for (long long i = 0; i < n; i += 32) {
		long long at = i + LANE, first = warp_first(at < n && (ids[at] < 0 || ids[at] >= limit) ? at : -1);
		if (first < 0) continue;
		if (LANE == 0) note(f, op, site, first, ids[first]);
		return;
	}
}

extern "C" __global__ void probabilities(const float *x, fault *f, unsigned op, unsigned long long site, long long n) {
	for (long long i = 0; i < n; i += 32) {
		long long at = i + LANE, first = warp_first(at < n && (x[at] < 0 || x[at] > 1) ? at : -1);
		if (first < 0) continue;
		if (LANE == 0) note(f, op, site, first, __double_as_longlong((double)x[first]));
		return;
	}
}

// index_select writes y [outer, count, inner]; n is the number of its elements.
extern "C" __global__ void index_select(void *y, const void *x, const long long *ids, int bytes, long long size, long long count, long long inner, long long n) {
	EACH(i, n) {
		long long id = ids[i / inner % count];
		if (id >= 0 && id < size) copy_element(y, i, x, (i / inner / count * size + id) * inner + i % inner, bytes);
	}
}

extern "C" __global__ void gather_elements(void *y, const void *x, const long long *ids, int bytes, long long size, long long count, long long inner, long long n) {
	EACH(i, n) {
		long long id = ids[i];
		if (id >= 0 && id < size) copy_element(y, i, x, (i / inner / count * size + id) * inner + i % inner, bytes);
	}
}

// scatter_elements takes the elements of a column in their order, so the last stays: a thread
// does a column, of n.
extern "C" __global__ void scatter_elements(void *y, const void *x, const long long *ids, int bytes, long long size, long long count, long long inner, long long n) {
	EACH(c, n)
		for (long long j = 0; j < count; j++) {
			long long from = (c / inner * count + j) * inner + c % inner, id = ids[from];
			if (id >= 0 && id < size) copy_element(y, (c / inner * size + id) * inner + c % inner, x, from, bytes);
		}
}

// index_add and scatter_add_elements add in the order of the ids: a thread does a column. Of
// the first, slices have one id; each says which.
#define ADD_BY_INDEX(name, T) \
	extern "C" __global__ void add_by_index_##name(T *y, const T *x, const long long *ids, int each, long long size, long long count, long long inner, long long n) { \
		EACH(c, n) \
			for (long long j = 0; j < count; j++) { \
				long long from = (c / inner * count + j) * inner + c % inner, id = ids[each ? from : j]; \
				if (id >= 0 && id < size) y[(c / inner * size + id) * inner + c % inner] += x[from]; \
			} \
	}
ADD_BY_INDEX(float, float)
ADD_BY_INDEX(double, double)
ADD_BY_INDEX(i64, long long)
ADD_BY_INDEX(i32, int)

// concat copies x [outer, count, inner] to y [outer, size, inner] from start on.
extern "C" __global__ void concat(void *y, const void *x, int bytes, long long start, long long size, long long count, long long inner, long long n) {
	EACH(i, n) copy_element(y, (i / inner / count * size + start + i / inner % count) * inner + i % inner, x, i, bytes);
}

extern "C" __global__ void add_region(float *y, const float *g, long long start, long long size, long long count, long long inner, long long n) {
	EACH(i, n) y[(i / inner / count * size + start + i / inner % count) * inner + i % inner] += g[i];
}

// triangle keeps what is not above a diagonal, or not below it. Zero is zero in each type.
extern "C" __global__ void triangle(void *y, const void *x, int bytes, long long k, int upper, long long rows, long long cols, long long n) {
	const long long zero = 0;
	EACH(i, n) {
		long long d = i % cols - i / cols % rows;
		bool keep = upper ? d >= k : d <= k;
		copy_element(y, i, keep ? x : (const void *)&zero, keep ? i : 0, bytes);
	}
}

// sum_rows adds up the rows of a matrix: a warp does a column.
extern "C" __global__ void sum_rows(float *y, const void *x, int type, long long rows, long long cols) {
	long long col = ROW;
	if (col >= cols) return;
	float v = 0;
	for (long long i = LANE; i < rows; i += 32) v += load_float(x, type, i * cols + col);
	v = warp_sum(v);
	if (LANE == 0) y[col] = v;
}
