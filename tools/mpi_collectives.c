// SPDX-License-Identifier: Apache-2.0

// The same collectives as `cohort bench collectives --backend mpi`, without Cohort: each rank
// repeats one collective between two barriers. One line a collective and size:
// "all_reduce 65536 31.4" is the median time in microseconds of the slowest rank.
//
//	mpicc -O2 -o mpi_collectives tools/mpi_collectives.c
//	mpirun -n 2 ./mpi_collectives [--nonblocking] [--sizes BYTES,BYTES] [OPERATION...]
//
// With MPI_ONE_THREAD=1 in the environment the MPI is initialised for one thread.
//
// --nonblocking measures the nonblocking collectives of the MPI in place of the blocking ones.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int nonblocking, rank, size;
static float *in, *out;

// once runs one collective. bytes is the data as `cohort bench collectives` counts it: the
// whole of what a rank has at the end or at the beginning, whichever is more.
static void once(const char *op, int bytes) {
	MPI_Request r;
	int n = bytes / 4, part = n / size;
	if (!strcmp(op, "all_reduce")) {
		if (nonblocking)
			MPI_Iallreduce(MPI_IN_PLACE, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &r);
		else
			MPI_Allreduce(MPI_IN_PLACE, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	} else if (!strcmp(op, "broadcast")) {
		if (nonblocking)
			MPI_Ibcast(out, n, MPI_FLOAT, 0, MPI_COMM_WORLD, &r);
		else
			MPI_Bcast(out, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
	} else if (!strcmp(op, "all_gather")) {
		if (nonblocking)
			MPI_Iallgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD, &r);
		else
			MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
	} else if (!strcmp(op, "reduce_scatter")) {
		if (nonblocking)
			MPI_Ireduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &r);
		else
			MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
	} else if (!strcmp(op, "all_to_all")) {
		if (nonblocking)
			MPI_Ialltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD, &r);
		else
			MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
	} else {
		fprintf(stderr, "no operation %s\n", op);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	if (nonblocking)
		MPI_Wait(&r, MPI_STATUS_IGNORE);
}

static int ascending(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

// measure prints the median of several runs of enough repetitions.
static void measure(const char *op, int bytes) {
	enum { runs = 7 };
	double times[runs];
	int repeat = 1 + (16 << 20) / (bytes + 32768);
	for (int i = 0; i < 2; i++)
		once(op, bytes);
	for (int i = 0; i < runs; i++) {
		MPI_Barrier(MPI_COMM_WORLD);
		double begun = MPI_Wtime();
		for (int j = 0; j < repeat; j++)
			once(op, bytes);
		double mine = (MPI_Wtime() - begun) / repeat * 1e6;
		MPI_Allreduce(&mine, &times[i], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	}
	qsort(times, runs, sizeof times[0], ascending);
	if (rank == 0) {
		printf("%s %d %.1f\n", op, bytes, times[runs / 2]);
		fflush(stdout);
	}
}

int main(int argc, char **argv) {
	const char *all[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"};
	int sizes[16] = {64 << 10, 1 << 20, 8 << 20, 64 << 20}, num_sizes = 4, first = 1;
	int level;
	// As Cohort initialises it. MPI_Init alone saves locks, which small data notices.
	MPI_Init_thread(&argc, &argv, getenv("MPI_ONE_THREAD") ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE, &level);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (; first < argc && !strncmp(argv[first], "--", 2); first++) {
		if (!strcmp(argv[first], "--nonblocking")) {
			nonblocking = 1;
		} else if (!strcmp(argv[first], "--sizes") && first + 1 < argc) {
			num_sizes = 0;
			for (char *s = strtok(argv[++first], ","); s && num_sizes < 16; s = strtok(NULL, ","))
				sizes[num_sizes++] = atoi(s);
		} else {
			fprintf(stderr, "usage: mpi_collectives [--nonblocking] [--sizes BYTES,BYTES] [OPERATION...]\n");
			MPI_Abort(MPI_COMM_WORLD, 2);
		}
	}
	int most = 0;
	for (int i = 0; i < num_sizes; i++)
		most = sizes[i] > most ? sizes[i] : most;
	in = calloc(1, most + 64);
	out = calloc(1, most + 64);
	if (first < argc)
		for (int i = first; i < argc; i++)
			for (int s = 0; s < num_sizes; s++)
				measure(argv[i], sizes[s]);
	else
		for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
			for (int s = 0; s < num_sizes; s++)
				measure(all[i], sizes[s]);
	MPI_Finalize();
	return 0;
}
