// SPDX-License-Identifier: Apache-2.0

// Tables of rows.

extern "C" __global__ void gather(float *y, const float *table, const long long *ids, long long rows, long long width, fault *f, unsigned op, unsigned long long site, long long n) {
	EACH(i, n) {
		long long id = ids[i / width];
		if (id >= 0 && id < rows) y[i] = table[id * width + i % width];
		else if (i % width == 0) note(f, op, site, i / width, id);
	}
}

// scatter_add adds rows in the order of the ids: a thread does a column.
extern "C" __global__ void scatter_add(float *table, const float *g, const long long *ids, long long rows, long long width, long long n) {
	EACH(c, width)
		for (long long i = 0; i < n; i++) {
			long long id = ids[i];
			if (id >= 0 && id < rows) table[id * width + c] += g[i * width + c];
		}
}
