// SPDX-License-Identifier: Apache-2.0

// What the two processes of the fake have in common: the host's library (driver.cpp) and the
// device (device.cpp). Both map two regions at the same addresses, of which the host may not
// touch the first: the memory of the device, and memory of the host that the device reads.
#pragma once
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// Where the regions lie, one behind the other: the host looks for room.
static uintptr_t arenaAt, pinnedAt;
static const size_t arenaSize = 1ul << 38, pinnedSize = 8ul << 30;

enum operation { op_copy, op_set8, op_set32, op_launch, op_wait, op_open, op_close, op_module };

struct command {
	int op, stream;
	uint64_t a, b, n;
	unsigned grid[3], block[3], dynamic;
	char data[2048]; // parameters, each at a multiple of 16
};

static const int maxStreams = 64;

struct control {                                   // mapped by both
	std::atomic<unsigned> completed[maxStreams]; // commands of each stream that are done
	std::atomic<int> error;                      // sticky, as the driver's are
	unsigned seed;                               // not 0: random pauses before commands, and any order of threads
	char text[1024];                             // what happened where
	char reply[1 << 20];
};

static inline void futex_wait(std::atomic<unsigned> *w, unsigned v) {
	timespec t = {0, 20000000}; // the other side may have died
	syscall(SYS_futex, w, FUTEX_WAIT, v, &t, 0, 0);
}
static inline void futex_wake(std::atomic<unsigned> *w) { syscall(SYS_futex, w, FUTEX_WAKE, 1 << 30, 0, 0, 0); }
