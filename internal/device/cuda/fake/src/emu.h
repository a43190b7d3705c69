// SPDX-License-Identifier: Apache-2.0

// Lets g++ compile the sources that NVRTC compiles. The fake's compiler includes it before a
// source. The threads of a block are fibers of one thread of the system, and change at
// barriers only, so a run is the same each time. A process has one multiprocessor, which runs
// one block at a time. A thread that meets no barrier costs a call of a function.
#pragma once
#include <cstdint>
#include <cstring>
#include <math.h>
#include <utility>

#define __CUDA_EMULATED__ 1
#define __global__ EMU_GLOBAL // empty in the end: it marks the kernels for the compiler
#define __device__ inline
#define __host__
#define __forceinline__
#define __noinline__
#define __restrict__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("emu_shared"))) // apart, to be poisoned
#define __constant__ static

struct dim3 { unsigned x, y, z; };

struct emu_kernel {
	const char *name;
	void (*run)(void **params);
	unsigned count;
	const unsigned *sizes;
};

// What the device gives to a module when it loads it.
struct emu_machine {
	dim3 gridDim, blockDim, blockIdx, threadIdx;
	unsigned char *dynamic;
	void (*block_barrier)();
	void (*warp_barrier)();
	void *(*warp_slots)(); // 32 slots of 16 bytes, of two sets in turn
	unsigned (*lane)();
};
extern "C" __attribute__((visibility("default"))) emu_machine *emu_m = nullptr;
#define gridDim (emu_m->gridDim)
#define blockDim (emu_m->blockDim)
#define blockIdx (emu_m->blockIdx)
#define threadIdx (emu_m->threadIdx)
#define warpSize 32

static inline void __syncthreads() { emu_m->block_barrier(); }
static inline void __syncwarp(unsigned = ~0u) { emu_m->warp_barrier(); }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T> static inline T emu_exchange(T v, unsigned from) {
	static_assert(sizeof(T) <= 16, "a shuffle of more than 16 bytes");
	char *s = (char *)emu_m->warp_slots();
	memcpy(s + 16 * emu_m->lane(), &v, sizeof v);
	emu_m->warp_barrier();
	memcpy(&v, s + 16 * (from & 31), sizeof v);
	return v;
}
template <class T> static inline T __shfl_sync(unsigned, T v, int l, int w = 32) {
	unsigned me = emu_m->lane();
	return emu_exchange(v, (me & ~(w - 1)) | (l & (w - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned, T v, int d, int = 32) { return emu_exchange(v, emu_m->lane() ^ d); }

// One block runs at a time and fibers do not interrupt each other; the host may look on.
template <class T> static inline T atomicAdd(T *p, T v) { T old = *p; *p = old + v; return old; }
template <class T> static inline T atomicCAS(T *p, T c, T v) { __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); return c; }
template <class T> static inline T atomicExch(T *p, T v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }

static inline float __uint_as_float(unsigned i) { float f; memcpy(&f, &i, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned i; memcpy(&i, &f, 4); return i; }
static inline long long __double_as_longlong(double f) { long long i; memcpy(&i, &f, 8); return i; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }

template <class... A, size_t... I> static inline void emu_apply(void (*f)(A...), void **p, std::index_sequence<I...>) { f(*(A *)p[I]...); }
template <class... A> struct emu_list { static constexpr unsigned sizes[sizeof...(A) + 1] = {sizeof(A)..., 0}; };
template <class... A> static inline void emu_unpack(void (*f)(A...), void **p) { emu_apply(f, p, std::index_sequence_for<A...>{}); }
template <class... A> static constexpr unsigned emu_count(void (*)(A...)) { return sizeof...(A); }
template <class... A> static constexpr const unsigned *emu_sizes(void (*)(A...)) { return emu_list<A...>::sizes; }
// The fake's compiler appends one for each kernel of the source.
#define EMU_KERNEL(name) \
	static void emu_run_##name(void **p) { emu_unpack(name, p); } \
	extern "C" __attribute__((section("emu_kernels"), used)) const emu_kernel emu_entry_##name = {#name, emu_run_##name, emu_count(name), emu_sizes(name)};
extern "C" emu_kernel __start_emu_kernels[] __attribute__((weak)), __stop_emu_kernels[] __attribute__((weak));
extern "C" char __start_emu_shared[] __attribute__((weak)), __stop_emu_shared[] __attribute__((weak));
extern "C" __attribute__((visibility("default"))) void emu_open(emu_machine *m, emu_kernel **k, unsigned *n, char **shared, size_t *size) {
	emu_m = m; *k = __start_emu_kernels; *n = __stop_emu_kernels - __start_emu_kernels;
	*shared = __start_emu_shared; *size = __stop_emu_shared - __start_emu_shared;
}
