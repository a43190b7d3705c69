// SPDX-License-Identifier: Apache-2.0

// Optimizers. scale is a number of the device that multiplies the gradients; if it is not
// finite nothing is written. A null scale is 1.

__device__ bool scale_of(const double *scale, float *s) {
	double v = scale ? *scale : 1;
	*s = (float)v;
	return v - v == 0;
}

extern "C" __global__ void adam(float *param, const float *grad, float *first, float *second, float *most, const double *scale, float direction, float decay, float lerp, float beta2, float rest2, float root2, float eps, float step, int decoupled, long long n) {
	float s;
	if (!scale_of(scale, &s)) return;
	EACH(i, n) {
		float g = grad[i] * s * direction, p = param[i];
		if (decoupled) p *= decay;
		else g += decay * p;
		float m = first[i] + (g - first[i]) * lerp, v = second[i] * beta2 + g * g * rest2, w = v;
		if (most) w = most[i] = larger(most[i], v);
		first[i] = m, second[i] = v;
		param[i] = p + step * (m / (sqrtf(w) / root2 + eps));
	}
}

extern "C" __global__ void sgd(float *param, const float *grad, float *momentum, const double *scale, float direction, float lr, float mu, float rest, float decay, int nesterov, int begin, long long n) {
	float s;
	if (!scale_of(scale, &s)) return;
	EACH(i, n) {
		float g = grad[i] * s * direction + decay * param[i];
		if (momentum) {
			float b = begin ? g : mu * momentum[i] + rest * g;
			momentum[i] = b;
			g = nesterov ? g + mu * b : b;
		}
		param[i] -= lr * g;
	}
}

extern "C" __global__ void clip_scale(double *scale, const double *norm, double limit) {
	double s = limit / (*norm + 1e-6);
	*scale = (s < 1 || s != s ? s : 1) + 0 * *norm;
}
