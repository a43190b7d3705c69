// SPDX-License-Identifier: Apache-2.0
// What compare_ps.py measures beside the parameter server, in C. Each prints a line of JSON.
//
//   ps_peers gather ROWS DIM BATCH STEPS         random rows of a table into a buffer, and one
//                                                copy of it
//   ps_peers socket BYTES STEPS                  an answer of BYTES over TCP of the same host,
//                                                for a request of 32 KiB
//   ps_peers redis SOCKET ROWS DIM BATCH STEPS   the same rows by MGET of a Redis at a unix
//                                                socket, 8 requests in a pipeline
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static uint64_t state = 88172645463325252ull;
static uint64_t draw(void) {
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return state;
}

static int less(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void report(const char *name, double *took, int steps, long rows) {
	double sum = 0;
	for (int i = 0; i < steps; i++) sum += took[i];
	qsort(took, steps, sizeof *took, less);
	printf("{\"case\": \"%s\", \"min_us\": %.2f, \"p50_us\": %.2f, \"p99_us\": %.2f, \"rows_per_s\": %.0f}\n", name, took[0], took[steps / 2], took[steps * 99 / 100],
	       rows / (took[steps / 2] / 1e6));
}

static void die(const char *what) {
	perror(what);
	exit(1);
}

static void put(int fd, const char *b, size_t n) {
	while (n > 0) {
		ssize_t did = write(fd, b, n);
		if (did <= 0) die("write");
		b += did, n -= did;
	}
}

static void get(int fd, char *b, size_t n) {
	while (n > 0) {
		ssize_t did = read(fd, b, n);
		if (did <= 0) die("read");
		b += did, n -= did;
	}
}

static void gather(long rows, long dim, long batch, int steps) {
	size_t width = dim * sizeof(float);
	char *table = malloc(rows * width), *out = malloc(batch * width), *copy = malloc(batch * width);
	memset(table, 1, rows * width), memset(out, 1, batch * width), memset(copy, 1, batch * width);
	int64_t *keys = malloc(batch * sizeof *keys);
	double *took = malloc(steps * sizeof *took);
	for (int s = 0; s < steps; s++) {
		for (long i = 0; i < batch; i++) keys[i] = draw() % rows;
		double t = now();
		for (long i = 0; i < batch; i++) memcpy(out + i * width, table + keys[i] * width, width);
		memcpy(copy, out, batch * width);
		took[s] = now() - t;
	}
	report("gather", took, steps, batch);
}

static void raw_socket(long bytes, int steps) {
	enum { request = 32 << 10 };
	char *b = calloc(1, bytes > request ? bytes : request);
	int one = 1, l = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof a;
	if (bind(l, (void *)&a, n) || listen(l, 1) || getsockname(l, (void *)&a, &n)) die("listen");
	if (fork() == 0) {
		int fd = accept(l, 0, 0);
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		for (int s = 0; s < steps; s++) get(fd, b, request), put(fd, b, bytes);
		_exit(0);
	}
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (void *)&a, n)) die("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	double *took = malloc(steps * sizeof *took);
	for (int s = 0; s < steps; s++) {
		double t = now();
		put(fd, b, request), get(fd, b, bytes);
		took[s] = now() - t;
	}
	report("socket", took, steps, 0);
}

// A reader of Redis's answers.
static char in[1 << 16];
static size_t at, end;
static char next(int fd) {
	if (at == end) {
		ssize_t n = read(fd, in, sizeof in);
		if (n <= 0) die("read");
		at = 0, end = n;
	}
	return in[at++];
}
static long number(int fd) {
	char line[64];
	int n = 0;
	for (char c; (c = next(fd)) != '\n';) if (n < 63) line[n++] = c;
	line[n] = 0;
	if (line[0] != '*' && line[0] != '$') fprintf(stderr, "Redis says %s\n", line), exit(1);
	return atol(line + 1);
}
static void value(int fd, char *to, size_t n) {
	if ((size_t)number(fd) != n) fprintf(stderr, "Redis has a value of another size\n"), exit(1);
	while (n > 0) {
		if (at == end) *to++ = next(fd), n--;
		size_t have = end - at < n ? end - at : n;
		memcpy(to, in + at, have), at += have, to += have, n -= have;
	}
	next(fd), next(fd);
}

static void redis(const char *path, long rows, long dim, long batch, int steps) {
	enum { together = 8 };
	size_t width = dim * sizeof(float);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path, path, sizeof a.sun_path - 1);
	if (connect(fd, (void *)&a, sizeof a)) die(path);
	char *row = malloc(width), *b = malloc((batch + 16) * (width + 64)), *out = malloc(batch * width);
	memset(row, 1, width);
	put(fd, "*1\r\n$6\r\nDBSIZE\r\n", 16);
	int filled = 0;
	for (char c; (c = next(fd)) != '\n';) if (c >= '0' && c <= '9') filled = filled * 10 + c - '0';
	for (long from = filled >= rows ? rows : 0; from < rows; from += batch) { // MSET
		long n = rows - from < batch ? rows - from : batch;
		size_t len = sprintf(b, "*%ld\r\n$4\r\nMSET\r\n", 1 + 2 * n);
		for (long i = 0; i < n; i++) {
			int64_t key = from + i;
			len += sprintf(b + len, "$8\r\n"), memcpy(b + len, &key, 8), len += 8;
			len += sprintf(b + len, "\r\n$%zu\r\n", width), memcpy(b + len, row, width), len += width;
			b[len++] = '\r', b[len++] = '\n';
		}
		put(fd, b, len);
		while (next(fd) != '\n') ;
	}
	double *took = malloc(steps * sizeof *took);
	for (int s = 0; s < steps; s++) {
		size_t len = 0;
		double t = now();
		for (long i = 0; i < batch; i++) {
			long per = (batch + together - 1) / together;
			if (i % per == 0) len += sprintf(b + len, "*%ld\r\n$4\r\nMGET\r\n", 1 + (batch - i < per ? batch - i : per));
			int64_t key = draw() % rows;
			len += sprintf(b + len, "$8\r\n"), memcpy(b + len, &key, 8), len += 8;
			b[len++] = '\r', b[len++] = '\n';
		}
		put(fd, b, len);
		for (long got = 0; got < batch;) {
			for (long n = number(fd); n > 0; n--, got++) value(fd, out + got * width, width);
		}
		took[s] = now() - t;
	}
	report("redis", took, steps, batch);
}

int main(int argc, char **argv) {
	if (argc == 6 && !strcmp(argv[1], "gather")) gather(atol(argv[2]), atol(argv[3]), atol(argv[4]), atoi(argv[5]));
	else if (argc == 4 && !strcmp(argv[1], "socket")) raw_socket(atol(argv[2]), atoi(argv[3]));
	else if (argc == 7 && !strcmp(argv[1], "redis")) redis(argv[2], atol(argv[3]), atol(argv[4]), atol(argv[5]), atoi(argv[6]));
	else return fprintf(stderr, "ps_peers: see the comment at the top of ps_peers.c\n"), 2;
}
