// SPDX-License-Identifier: Apache-2.0

// The device of the fake driver: a process of its own, so that the host cannot
// touch device memory nor a kernel host memory. It maps the arena that the
// host side only reserves, takes commands from a socket, and runs them on one
// thread a stream; kernels take turns on the one multiprocessor.
// An access out of bounds, after a free, or to host memory is a SIGSEGV here,
// which becomes the sticky CUDA_ERROR_ILLEGAL_ADDRESS with the kernel's name.
#include "fake.h"
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <dlfcn.h>
#include <csetjmp>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

struct dim { unsigned x, y, z; };
struct machine { // emu_machine of emu.h
	dim grid, block, blockIdx, threadIdx;
	unsigned char *dynamic;
	void (*block_barrier)();
	void (*warp_barrier)();
	void *(*warp_slots)();
	unsigned (*lane)();
};
struct kernel { const char *name; void (*run)(void **); unsigned count; const unsigned *sizes; };
struct module { kernel *k; unsigned n; char *shared; size_t sharedSize; };

static control *ctl;
static char *arena, *pinned;
static module modules[256];
static std::mutex sm; // one multiprocessor

static void fail(int code, const std::string &text) {
	static std::mutex one;
	std::lock_guard<std::mutex> l(one);
	if (ctl->error) return;
	snprintf(ctl->text, sizeof ctl->text, "%s", text.c_str());
	ctl->error = code;
}

// ---- threads of a block ----

extern "C" void fiber_switch(void **save, void *to);
asm(R"(
.globl fiber_switch
fiber_switch:
	push %rbp
	push %rbx
	push %r12
	push %r13
	push %r14
	push %r15
	mov %rsp, (%rdi)
	mov %rsi, %rsp
	pop %r15
	pop %r14
	pop %r13
	pop %r12
	pop %rbx
	pop %rbp
	ret
)");

enum state { idle, running, at_block, at_warp, done };
struct fiber { void *sp; char *stack; };
static const int maxThreads = 1024, stackSize = 64 << 10;
static machine m;
static fiber fibers[maxThreads];
static void *scheduler;
static int of_thread[maxThreads]; // the fiber that a thread runs on
static int order[maxThreads];     // in which threads start: any, with a seed
static state states[maxThreads];
static int count, started, finished, current, currentFiber;
static char slots[32][2][32 * 16];
static unsigned shuffles[maxThreads];
static void (*body)(void **);
static void **params;

static void place(int t) { m.threadIdx = {t % m.block.x, t / m.block.x % m.block.y, t / (m.block.x * m.block.y)}; }
static void pause(state s) {
	int t = current, f = currentFiber;
	states[t] = s;
	fiber_switch(&fibers[f].sp, scheduler);
}
static void block_barrier() { pause(at_block); }
static void warp_barrier() { pause(at_warp); }
static void *warp_slots() { return slots[current / 32][shuffles[current]++ & 1]; }
static unsigned lane() { return current & 31; }

// A fiber runs threads one after the other until one of them has to wait.
static void fiber_main() {
	for (;;) {
		while (started < count) {
			int t = current = order[started++];
			of_thread[t] = currentFiber;
			states[t] = running;
			place(t);
			body(params);
			states[current] = done; // current is t again whoever ran in between
			finished++;
			if (current != t) abort();
		}
		fiber_switch(&fibers[currentFiber].sp, scheduler);
	}
}
static void resume(int f, int t) {
	currentFiber = f;
	if (t >= 0) { current = t; states[t] = running; place(t); }
	fiber_switch(&scheduler, fibers[f].sp);
}
static void reset(int f) {
	fiber &b = fibers[f];
	if (!b.stack) b.stack = (char *)mmap(0, stackSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	void **p = (void **)(b.stack + stackSize);
	*--p = 0;
	*--p = (void *)fiber_main;
	for (int i = 0; i < 6; i++) *--p = 0;
	b.sp = p;
}
static bool run_block(std::string &why) {
	started = finished = 0;
	memset(shuffles, 0, count * sizeof *shuffles);
	static std::minstd_rand rng(ctl->seed);
	for (int t = 0; t < count; t++) order[t] = t;
	if (ctl->seed) std::shuffle(order, order + count, rng);
	int next = 0;
	while (started < count) { reset(next); resume(next++, -1); }
	while (finished < count) {
		bool moved = false;
		for (int w = 0; w < count; w += 32) {
			int top = std::min(w + 32, count), waiting = 0, others = 0;
			for (int t = w; t < top; t++) { waiting += states[t] == at_warp; others += states[t] == at_block; }
			if (!waiting || others) continue;
			for (int t = w; t < top; t++) if (states[t] == at_warp) resume(of_thread[t], t);
			moved = true;
		}
		if (moved) continue;
		int blocked = 0;
		for (int t = 0; t < count; t++) blocked += states[t] == at_block;
		if (blocked + finished == count && blocked) {
			if (finished) { why = "a barrier that " + std::to_string(finished) + " of " + std::to_string(count) + " threads never come to"; return false; }
			for (int i = 0; i < count; i++) resume(of_thread[order[i]], order[i]);
			continue;
		}
		if (finished < count) { why = "threads of one warp wait at different barriers"; return false; }
	}
	return true;
}

static thread_local sigjmp_buf *guard;
static thread_local void *faultAt;
static void on_fault(int, siginfo_t *i, void *) {
	if (!guard) _exit(139);
	faultAt = i->si_addr;
	siglongjmp(*guard, 1);
}

static void launch(const command &c) {
	const module &mod = modules[c.a];
	const kernel &k = mod.k[c.b];
	std::lock_guard<std::mutex> one(sm);
	static char dynamic[228 << 10] __attribute__((aligned(256)));
	if (c.dynamic > sizeof dynamic) { fail(1, "too much shared memory"); return; }
	void *p[64];
	size_t at = 0;
	for (unsigned i = 0; i < k.count; i++) { at = (at + 15) & ~15ul; p[i] = (void *)(c.data + at); at += k.sizes[i]; }
	m.grid = {c.grid[0], c.grid[1], c.grid[2]};
	m.block = {c.block[0], c.block[1], c.block[2]};
	m.dynamic = (unsigned char *)dynamic;
	count = c.block[0] * c.block[1] * c.block[2];
	body = k.run, params = p;
	sigjmp_buf here;
	guard = &here;
	if (sigsetjmp(here, 1)) {
		char s[200];
		snprintf(s, sizeof s, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u): access to %p", k.name, m.blockIdx.x, m.blockIdx.y, m.blockIdx.z, m.threadIdx.x, m.threadIdx.y, m.threadIdx.z, faultAt);
		fail(700, s);
	} else {
		std::string why;
		for (unsigned z = 0; z < m.grid.z; z++) for (unsigned y = 0; y < m.grid.y; y++) for (unsigned x = 0; x < m.grid.x; x++) {
			m.blockIdx = {x, y, z};
			memset(mod.shared, 0xff, mod.sharedSize); // NaN
			memset(dynamic, 0xff, c.dynamic);
			if (!run_block(why)) { fail(719, std::string("kernel ") + k.name + ": " + why); goto out; }
		}
	}
out:
	guard = nullptr;
}

// ---- streams ----

struct stream {
	std::mutex mu;
	std::condition_variable cv;
	std::deque<command> q;
	int id;
};
static std::map<int, stream *> streams;

static void wait_for(std::atomic<unsigned> &word, unsigned until) {
	for (unsigned v; (int)((v = word.load()) - until) < 0;) futex_wait(&word, v);
}

static void fail_access(const char *what, const command &c) {
	char s[160];
	snprintf(s, sizeof s, "%s of %llu bytes at %p (from %p): access to %p", what, (unsigned long long)c.n, (void *)c.a, (void *)c.b, faultAt);
	fail(700, s);
}

static void execute(const command &c) {
	if (ctl->error) return;
	switch (c.op) {
	case op_copy: {
		sigjmp_buf here;
		guard = &here;
		if (sigsetjmp(here, 1)) fail_access("copy", c);
		else memmove((void *)c.a, (void *)c.b, c.n);
		guard = nullptr;
		break;
	}
	case op_set8:
	case op_set32: {
		sigjmp_buf here;
		guard = &here;
		if (sigsetjmp(here, 1)) fail_access("set", c);
		else if (c.op == op_set8) memset((void *)c.a, (int)c.b, c.n);
		else for (size_t i = 0; i < c.n; i++) ((unsigned *)c.a)[i] = (unsigned)c.b;
		guard = nullptr;
		break;
	}
	case op_launch: launch(c); break;
	case op_wait: wait_for(ctl->completed[c.a], (unsigned)c.b); break;
	case op_open: { // an address range begins to exist, poisoned
		mprotect((void *)c.a, c.n, PROT_READ | PROT_WRITE);
		memset((void *)c.a, 0xff, c.n);
		break;
	}
	case op_close:
		mprotect((void *)c.a, c.n, PROT_NONE);
		madvise((void *)c.a, c.n, MADV_REMOVE);
		break;
	case op_module: {
		void *h = dlopen((const char *)c.data, RTLD_NOW | RTLD_LOCAL);
		if (!h) { fail(200, dlerror()); break; }
		auto open = (void (*)(machine *, kernel **, unsigned *, char **, size_t *))dlsym(h, "emu_open");
		module &mod = modules[c.a];
		open(&m, &mod.k, &mod.n, &mod.shared, &mod.sharedSize);
		char *p = ctl->reply; // name, count, sizes
		for (unsigned i = 0; i < mod.n; i++) {
			p += sprintf(p, "%s %u", mod.k[i].name, mod.k[i].count);
			for (unsigned j = 0; j < mod.k[i].count; j++) p += sprintf(p, " %u", mod.k[i].sizes[j]);
			p += sprintf(p, "\n");
		}
		break;
	}
	}
}

static void serve(stream *s) {
	stack_t ss = {}; // for the handler: the stack of a fiber may be what has overflowed
	ss.ss_sp = malloc(64 << 10), ss.ss_size = 64 << 10;
	sigaltstack(&ss, 0);
	std::minstd_rand rng(ctl->seed + s->id);
	for (;;) {
		std::unique_lock<std::mutex> l(s->mu);
		s->cv.wait(l, [&] { return !s->q.empty(); });
		command c = s->q.front();
		s->q.pop_front();
		l.unlock();
		if (ctl->seed && rng() % 4 == 0) usleep(rng() % 300); // what is not ordered comes in any order
		execute(c);
		ctl->completed[s->id]++;
		futex_wake(&ctl->completed[s->id]);
	}
}

int main(int argc, char **argv) {
	int socket = atoi(argv[1]), control_fd = atoi(argv[2]), arena_fd = atoi(argv[3]), pinned_fd = atoi(argv[4]);
	arenaAt = strtoull(argv[5], 0, 10), pinnedAt = arenaAt + arenaSize;
	ctl = (control *)mmap(0, sizeof *ctl, PROT_READ | PROT_WRITE, MAP_SHARED, control_fd, 0);
	arena = (char *)mmap((void *)arenaAt, arenaSize, PROT_NONE, MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, arena_fd, 0);
	pinned = (char *)mmap((void *)pinnedAt, pinnedSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED_NOREPLACE | MAP_NORESERVE, pinned_fd, 0);
	if (ctl == MAP_FAILED || arena == MAP_FAILED || pinned == MAP_FAILED) { perror("fake device"); return 1; }
	m.block_barrier = block_barrier, m.warp_barrier = warp_barrier, m.warp_slots = warp_slots, m.lane = lane;
	struct sigaction sa = {};
	sa.sa_sigaction = on_fault, sa.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
	sigaction(SIGSEGV, &sa, 0);
	sigaction(SIGBUS, &sa, 0);
	command c;
	while (read(socket, &c, sizeof c) > 0) { // ends when the host side does, however that ends
		stream *&s = streams[c.stream];
		if (!s) { s = new stream; s->id = c.stream; std::thread(serve, s).detach(); }
		std::lock_guard<std::mutex> l(s->mu);
		s->q.push_back(c);
		s->cv.notify_one();
	}
	_exit(0);
}
