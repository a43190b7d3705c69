// SPDX-License-Identifier: Apache-2.0

// MPI's collectives, measured as `cohort bench collectives` measures ours: a
// loop of calls, closed by a barrier, divided by its length; the median of 3
// loops. One JSON object a line.
//
//     mpicc -O2 -o mpi_collectives tools/mpi_collectives.c
//     mpirun -n 2 --bind-to none ./mpi_collectives all_reduce,barrier 4,65536 0,1
//
// The last argument, if given, are CPUs to which the ranks are bound in turn:
// mpirun's own binding knows nothing of the CPUs that it was confined to.
// // "bytes" is what it is there: the tensor of all_reduce, broadcast, reduce and
// sendrecv (a round trip); each rank's contribution to all_gather and gather;
// the whole source of reduce_scatter, all_to_all and scatter, where a part has
// at least one element. all_reduce and reduce work in place, as ours do.

#define _GNU_SOURCE

#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static float *in, *out;

enum { MAX_ITEMS = 32, NUM_LOOPS = 3 };

static void die(const char *what, const char *name) {
	if (rank == 0)
		fprintf(stderr, "mpi_collectives: %s %s\n", what, name);
	MPI_Abort(MPI_COMM_WORLD, 2);
}

static float *floats(size_t n) {
	void *p = NULL;
	if (posix_memalign(&p, 4096, n * sizeof(float)) != 0)
		die("no memory for", "the buffers");
	for (size_t i = 0; i < n; i++)
		((float *)p)[i] = 0;
	return p;
}

// call does one operation; n is the number of elements of "bytes", part of a
// rank's share of them.
static void call(const char *op, int n, int part) {
	MPI_Comm world = MPI_COMM_WORLD;
	if (!strcmp(op, "all_reduce"))
		MPI_Allreduce(MPI_IN_PLACE, in, n, MPI_FLOAT, MPI_SUM, world);
	else if (!strcmp(op, "broadcast"))
		MPI_Bcast(in, n, MPI_FLOAT, 0, world);
	else if (!strcmp(op, "reduce"))
		MPI_Reduce(rank == 0 ? MPI_IN_PLACE : in, in, n, MPI_FLOAT, MPI_SUM, 0, world);
	else if (!strcmp(op, "all_gather"))
		MPI_Allgather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, world);
	else if (!strcmp(op, "gather"))
		MPI_Gather(in, n, MPI_FLOAT, out, n, MPI_FLOAT, 0, world);
	else if (!strcmp(op, "reduce_scatter"))
		MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, world);
	else if (!strcmp(op, "scatter"))
		MPI_Scatter(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, world);
	else if (!strcmp(op, "all_to_all"))
		MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, world);
	else if (!strcmp(op, "barrier"))
		MPI_Barrier(world);
	else if (!strcmp(op, "sendrecv")) {
		if (rank == 0) {
			MPI_Send(in, n, MPI_FLOAT, 1, 0, world);
			MPI_Recv(in, n, MPI_FLOAT, 1, 0, world, MPI_STATUS_IGNORE);
		} else if (rank == 1) {
			MPI_Recv(in, n, MPI_FLOAT, 0, 0, world, MPI_STATUS_IGNORE);
			MPI_Send(in, n, MPI_FLOAT, 0, 0, world);
		}
	} else
		die("no operation", op);
}

static int ascending(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

// loop_length returns how many calls take about a fifth of a second: with more
// ranks than cores that may be a few only.
static int loop_length(const char *op, int n, int part) {
	enum { TRIALS = 5 };
	MPI_Barrier(MPI_COMM_WORLD);
	double start = MPI_Wtime();
	for (int i = 0; i < TRIALS; i++)
		call(op, n, part);
	MPI_Barrier(MPI_COMM_WORLD);
	double reps = 0.2 / ((MPI_Wtime() - start) / TRIALS);
	int whole = reps > 2000 ? 2000 : reps < 4 ? 4 : (int)reps;
	MPI_Bcast(&whole, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return whole;
}

static void measure(const char *op, long bytes) {
	int n = bytes >= 4 ? (int)(bytes / 4) : 1;
	int part = n / ranks > 0 ? n / ranks : 1;
	int all = !strcmp(op, "all_gather") || !strcmp(op, "gather");
	int scattered = n > part * ranks ? n : part * ranks;
	in = floats((size_t)scattered);
	out = floats((size_t)n * (all ? (size_t)ranks : 1) + (size_t)scattered * (all ? 0 : 1));
	double took[NUM_LOOPS];
	call(op, n, part);
	int reps = loop_length(op, n, part);
	for (int i = 0; i < NUM_LOOPS; i++) {
		MPI_Barrier(MPI_COMM_WORLD);
		double start = MPI_Wtime();
		for (int k = 0; k < reps; k++)
			call(op, n, part);
		MPI_Barrier(MPI_COMM_WORLD);
		took[i] = (MPI_Wtime() - start) / reps;
	}
	qsort(took, NUM_LOOPS, sizeof took[0], ascending);
	double median = took[NUM_LOOPS / 2];
	char version[MPI_MAX_LIBRARY_VERSION_STRING];
	int length;
	MPI_Get_library_version(version, &length);
	version[strcspn(version, ",")] = 0;
	if (rank == 0) {
		printf("{\"bench\":\"collectives\",\"case\":\"%s\",\"ranks\":%d,\"bytes\":%ld,\"backend\":\"mpi\",\"version\":\"%s\",\"median_us\":%.3f,\"gb_per_s\":%.6f}\n",
		       op, ranks, bytes, version, median * 1e6, bytes / median / 1e9);
		fflush(stdout);
	}
	free(in);
	free(out);
}

// split cuts a list at its commas.
static int split(char *list, char **items) {
	int n = 0;
	for (char *s = strtok(list, ","); s != NULL; s = strtok(NULL, ",")) {
		if (n == MAX_ITEMS)
			die("too many items after", items[n - 1]);
		items[n++] = s;
	}
	return n;
}

// bind puts this process on one of the CPUs of a list, before MPI looks where
// it is.
static void bind(char *list) {
	const char *local = getenv("OMPI_COMM_WORLD_LOCAL_RANK");
	char *cpus[MAX_ITEMS];
	int n = split(list, cpus);
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(atoi(cpus[(local ? atoi(local) : 0) % n]), &set);
	if (sched_setaffinity(0, sizeof set, &set) != 0) {
		perror("mpi_collectives: sched_setaffinity");
		exit(2);
	}
}

int main(int argc, char **argv) {
	if (argc == 4)
		bind(argv[3]);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 3 || argc > 4 || ranks < 2)
		die("usage: mpirun -n RANKS", "mpi_collectives OPS BYTES [CPUS], with 2 ranks or more");
	char *ops[MAX_ITEMS], *sizes[MAX_ITEMS];
	int num_ops = split(argv[1], ops), num_sizes = split(argv[2], sizes);
	for (int s = 0; s < num_sizes; s++) {
		long bytes = atol(sizes[s]);
		if (bytes < 4 || bytes > 1L << 30)
			die("want 4 to 2^30 bytes, not", sizes[s]);
		for (int i = 0; i < num_ops; i++)
			if (strcmp(ops[i], "barrier"))
				measure(ops[i], bytes);
	}
	for (int i = 0; i < num_ops; i++)
		if (!strcmp(ops[i], "barrier"))
			measure("barrier", 0);
	MPI_Finalize();
	return 0;
}
