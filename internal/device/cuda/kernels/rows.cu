// SPDX-License-Identifier: Apache-2.0

// Operations on rows: softmax, layer norm and losses over classes. A warp does a row.

__device__ float row_max(const void *x, int type, long long at, long long cols) {
	float top = -INFINITE;
	for (long long i = LANE; i < cols; i += 32) top = larger(load_float(x, type, at + i), top);
	return warp_max(top);
}

// The sum of exp(x - top), of which a row of minus infinity has 0.
__device__ float row_sum_exp(const void *x, int type, long long at, long long cols, float top) {
	float sum = 0;
	for (long long i = LANE; i < cols; i += 32) {
		float v = load_float(x, type, at + i);
		sum += v == -INFINITE ? 0 : expf(v - top);
	}
	return warp_sum(sum);
}

extern "C" __global__ void softmax(float *y, const float *x, long long rows, long long cols) {
	long long row = ROW;
	if (row >= rows) return;
	float top = row_max(x, F32, row * cols, cols), sum = 0;
	for (long long i = LANE; i < cols; i += 32) sum += expf(x[row * cols + i] - top);
	sum = warp_sum(sum);
	for (long long i = LANE; i < cols; i += 32) y[row * cols + i] = expf(x[row * cols + i] - top) / sum;
}

extern "C" __global__ void softmax_grad(float *dx, const float *y, const float *g, long long rows, long long cols) {
	long long row = ROW;
	if (row >= rows) return;
	float dot = 0;
	for (long long i = LANE; i < cols; i += 32) dot += y[row * cols + i] * g[row * cols + i];
	dot = warp_sum(dot);
	for (long long i = LANE; i < cols; i += 32) dx[row * cols + i] = y[row * cols + i] * (g[row * cols + i] - dot);
}

// log_sum_exp of a row whose maximum is infinite is that maximum.
extern "C" __global__ void log_sum_exp(float *y, const float *x, long long rows, long long cols) {
	long long row = ROW;
	if (row >= rows) return;
	float top = row_max(x, F32, row * cols, cols), sum = row_sum_exp(x, F32, row * cols, cols, top);
	if (LANE == 0) y[row] = top - top == 0 ? top + logf(sum) : top;
}

extern "C" __global__ void max_and_sum_exp(float *top, float *sum, const void *x, int type, long long rows, long long cols) {
	long long row = ROW;
	if (row >= rows) return;
	float t = row_max(x, type, row * cols, cols), s = row_sum_exp(x, type, row * cols, cols, t);
	if (LANE == 0) top[row] = t, sum[row] = s;
}

extern "C" __global__ void layer_norm(void *y, float *mean, float *rstd, const void *x, int type, const float *gamma, const float *beta, float eps, long long rows, long long cols) {
	long long row = ROW, at = row * cols;
	if (row >= rows) return;
	float sum = 0, squares = 0;
	for (long long i = LANE; i < cols; i += 32) sum += load_float(x, type, at + i);
	float mu = warp_sum(sum) / cols;
	for (long long i = LANE; i < cols; i += 32) {
		float d = load_float(x, type, at + i) - mu;
		squares += d * d;
	}
	float r = 1 / sqrtf(warp_sum(squares) / cols + eps);
	for (long long i = LANE; i < cols; i += 32) store_float(y, type, at + i, (load_float(x, type, at + i) - mu) * r * gamma[i] + beta[i]);
	if (LANE == 0) mean[row] = mu, rstd[row] = r;
}

extern "C" __global__ void layer_norm_grad(void *dx, const void *g, const void *x, int type, const float *mean, const float *rstd, const float *gamma, long long rows, long long cols) {
	long long row = ROW, at = row * cols;
	if (row >= rows) return;
	float mu = mean[row], r = rstd[row], a = 0, b = 0;
	for (long long i = LANE; i < cols; i += 32) {
		float d = load_float(g, type, at + i) * gamma[i];
		a += d, b += d * (load_float(x, type, at + i) - mu) * r;
	}
	a = warp_sum(a) / cols, b = warp_sum(b) / cols;
	for (long long i = LANE; i < cols; i += 32) {
		float h = (load_float(x, type, at + i) - mu) * r;
		store_float(dx, type, at + i, r * (load_float(g, type, at + i) * gamma[i] - a - h * b));
	}
}

// layer_norm_params adds up the gradients of gamma and beta: a warp does a column.
extern "C" __global__ void layer_norm_params(float *dgamma, float *dbeta, const void *g, const void *x, int type, const float *mean, const float *rstd, long long rows, long long cols) {
	long long col = ROW;
	if (col >= cols) return;
	float a = 0, b = 0;
	for (long long i = LANE; i < rows; i += 32) {
		float d = load_float(g, type, i * cols + col);
		a += d * (load_float(x, type, i * cols + col) - mean[i]) * rstd[i], b += d;
	}
	a = warp_sum(a), b = warp_sum(b);
	if (LANE == 0) dgamma[col] = a, dbeta[col] = b;
}

// class_targets is done by one warp.
extern "C" __global__ void class_targets(long long *ids, const long long *targets, double *scale, long long classes, long long ignore, long long as, fault *f, unsigned op, unsigned long long site, long long rows) {
	double count = 0;
	long long first = -1;
	for (long long i = LANE; i < rows; i += 32) {
		long long id = targets[i];
		if (id == ignore) id = as;
		else if (id < 0 || id >= classes) {
			if (first < 0) first = i;
			id = as, count++;
		} else count++;
		ids[i] = id;
	}
	count = warp_sum(count);
	for (int d = 16; d > 0; d /= 2) { // the first of all lanes
		long long other = __shfl_xor_sync(0xffffffffu, first, d);
		if (other >= 0 && (first < 0 || other < first)) first = other;
	}
	if (LANE != 0) return;
	*scale = 1 / count;
	if (first >= 0) note(f, op, site, first, targets[first]);
}

extern "C" __global__ void cross_entropy(float *loss, float *lse, const void *x, int type, const long long *ids, long long rows, long long cols) {
	long long row = ROW;
	if (row >= rows) return;
	float top = row_max(x, type, row * cols, cols), sum = row_sum_exp(x, type, row * cols, cols, top);
	if (LANE != 0) return;
	float l = top - top == 0 ? top + logf(sum) : top;
	long long id = ids[row];
	lse[row] = l;
	loss[row] = id < 0 || id >= cols ? 0 : l - load_float(x, type, row * cols + id);
}

extern "C" __global__ void cross_entropy_grad(void *dx, const void *x, int type, const float *lse, const long long *ids, const float *g, long long rows, long long cols) {
	long long row = ROW;
	if (row >= rows) return;
	long long id = ids[row];
	for (long long i = LANE; i < cols; i += 32) {
		float p = expf(load_float(x, type, row * cols + i) - lse[row]);
		store_float(dx, type, row * cols + i, id == -100 ? 0 : g[row] * (i == id ? p - 1 : p));
	}
}
