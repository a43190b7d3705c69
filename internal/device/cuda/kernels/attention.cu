// SPDX-License-Identifier: Apache-2.0

// Attention without a matrix of probabilities. A warp does a query, in the backward pass of
// keys a key; a lane has each 32nd channel. Heads have up to 256 channels.

#define LANE_DIMS 8

// heads says where an operand [batch, time, heads, dim] lies: strides in elements.
struct heads {
	void *p;
	long long type, batch, time, head;
};

struct shape {
	long long batch, heads, time, keyTime, keyHeads, dim;
	const float *mask; // opt, with its strides
	long long maskBatch, maskHead, maskTime;
	float scale, cap;
	long long causal;
};

__device__ long long at(const heads &h, long long b, long long t, long long n) { return b * h.batch + t * h.time + n * h.head; }

// take loads the channels of a lane.
__device__ void take(float *v, const heads &h, long long from, const shape &s) {
	for (int i = 0; i < LANE_DIMS; i++) {
		long long c = LANE + 32 * i;
		v[i] = c < s.dim ? load_float(h.p, (int)h.type, from + c) : 0;
	}
}
__device__ void put(const heads &h, long long to, const shape &s, const float *v) {
	for (int i = 0; i < LANE_DIMS; i++) {
		long long c = LANE + 32 * i;
		if (c < s.dim) store_float(h.p, (int)h.type, to + c, v[i]);
	}
}
__device__ float dot(const float *a, const float *b) {
	float v = 0;
	for (int i = 0; i < LANE_DIMS; i++) v += a[i] * b[i];
	return warp_sum(v);
}

// score is the logit of a query and a key; curve is its slope by q·k·scale.
__device__ float score(const shape &s, float qk, long long b, long long h, long long t, long long u, float *curve) {
	float x = qk * s.scale;
	*curve = 1;
	if (s.cap != 0) {
		float r = tanhf(x / s.cap);
		x = s.cap * r, *curve = 1 - r * r;
	}
	if (s.mask) x += s.mask[b * s.maskBatch + h * s.maskHead + t * s.maskTime + u];
	return x;
}

// keys returns how many keys a query sees.
__device__ long long keys(const shape &s, long long t) {
	if (!s.causal) return s.keyTime;
	long long n = t + s.keyTime - s.time + 1;
	return n < 0 ? 0 : n;
}

extern "C" __global__ void attention(heads out, float *lse, heads q, heads k, heads v, shape s) {
	long long row = ROW;
	if (row >= s.batch * s.heads * s.time) return;
	long long t = row % s.time, h = row / s.time % s.heads, b = row / (s.time * s.heads), kh = h / (s.heads / s.keyHeads);
	float mine[LANE_DIMS], key[LANE_DIMS], value[LANE_DIMS], sum[LANE_DIMS] = {}, top = -INFINITE, total = 0, curve;
	take(mine, q, at(q, b, t, h), s);
	for (long long u = 0, n = keys(s, t); u < n; u++) {
		take(key, k, at(k, b, u, kh), s);
		float x = score(s, dot(mine, key), b, h, t, u, &curve);
		if (x == -INFINITE) continue;
		float most = larger(x, top), old = top == -INFINITE ? 0 : expf(top - most), p = expf(x - most);
		take(value, v, at(v, b, u, kh), s);
		for (int i = 0; i < LANE_DIMS; i++) sum[i] = sum[i] * old + p * value[i];
		total = total * old + p, top = most;
	}
	for (int i = 0; i < LANE_DIMS; i++) sum[i] = total == 0 ? 0 : sum[i] / total;
	put(out, at(out, b, t, h), s, sum);
	if (LANE == 0) lse[row] = total == 0 ? -INFINITE : top + logf(total);
}

// attention_query_grad is the gradient of the queries.
extern "C" __global__ void attention_query_grad(heads dq, heads g, heads out, const float *lse, heads q, heads k, heads v, shape s) {
	long long row = ROW;
	if (row >= s.batch * s.heads * s.time) return;
	long long t = row % s.time, h = row / s.time % s.heads, b = row / (s.time * s.heads), kh = h / (s.heads / s.keyHeads);
	float mine[LANE_DIMS], up[LANE_DIMS], key[LANE_DIMS], value[LANE_DIMS], sum[LANE_DIMS] = {}, curve;
	take(value, out, at(out, b, t, h), s);
	take(up, g, at(g, b, t, h), s);
	float delta = dot(up, value);
	take(mine, q, at(q, b, t, h), s);
	for (long long u = 0, n = keys(s, t); u < n; u++) {
		take(key, k, at(k, b, u, kh), s);
		float x = score(s, dot(mine, key), b, h, t, u, &curve);
		take(value, v, at(v, b, u, kh), s);
		float p = lse[row] == -INFINITE ? 0 : expf(x - lse[row]), ds = p * (dot(up, value) - delta) * curve * s.scale;
		for (int i = 0; i < LANE_DIMS; i++) sum[i] += ds * key[i];
	}
	put(dq, at(dq, b, t, h), s, sum);
}

// attention_key_grad is the gradient of the keys and the values, over all heads that share
// them.
extern "C" __global__ void attention_key_grad(heads dk, heads dv, heads g, heads out, const float *lse, heads q, heads k, heads v, shape s) {
	long long row = ROW;
	if (row >= s.batch * s.keyHeads * s.keyTime) return;
	long long u = row % s.keyTime, kh = row / s.keyTime % s.keyHeads, b = row / (s.keyTime * s.keyHeads), group = s.heads / s.keyHeads;
	float key[LANE_DIMS], value[LANE_DIMS], mine[LANE_DIMS], up[LANE_DIMS], made[LANE_DIMS], sumK[LANE_DIMS] = {}, sumV[LANE_DIMS] = {}, curve;
	take(key, k, at(k, b, u, kh), s);
	take(value, v, at(v, b, u, kh), s);
	for (long long h = kh * group; h < (kh + 1) * group; h++)
		for (long long t = 0; t < s.time; t++) {
			float l = lse[(b * s.heads + h) * s.time + t];
			if (u >= keys(s, t) || l == -INFINITE) continue;
			take(mine, q, at(q, b, t, h), s);
			take(up, g, at(g, b, t, h), s);
			take(made, out, at(out, b, t, h), s);
			float x = score(s, dot(mine, key), b, h, t, u, &curve), p = expf(x - l);
			float ds = p * (dot(up, value) - dot(up, made)) * curve * s.scale;
			for (int i = 0; i < LANE_DIMS; i++) sumK[i] += ds * mine[i], sumV[i] += p * up[i];
		}
	put(dk, at(dk, b, u, kh), s, sumK);
	put(dv, at(dv, b, u, kh), s, sumV);
}
