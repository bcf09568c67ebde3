// The verbs of bench groups, gather and collective over MPI: VERB BYTES COUNT fenced|chained. It prints "took;TIME" for each call, in µs:
// behind a barrier, on the slowest rank, or on rank 0 if that receives; or on rank 0, of calls that follow each other. BYTES is the size of
// a rank's object or, of all-gather, reduce-scatter and all-to-all, of the larger slice.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;
static float *x, *y; // of BYTES each, or what rank 0 gathers
static int bytes, count, part; // count: elements of BYTES; part: of a rank's part

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }
static void allreduce(void) { MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void broadcast(void) { MPI_Bcast(x, bytes, MPI_BYTE, 0, MPI_COMM_WORLD); }
static void collect(void) { MPI_Allgather(y, part, MPI_FLOAT, x, part, MPI_FLOAT, MPI_COMM_WORLD); }
static void scatter(void) { MPI_Reduce_scatter_block(x, y, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void exchange(void) { MPI_Alltoall(x, part, MPI_FLOAT, y, part, MPI_FLOAT, MPI_COMM_WORLD); }
static void gather(void) { MPI_Gather(y, bytes, MPI_BYTE, x, bytes, MPI_BYTE, 0, MPI_COMM_WORLD); }

static void pingpong(void) {
	if (rank > 1) return;
	if (rank == 0) MPI_Send(y, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
	MPI_Recv(y, bytes, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (rank == 1) MPI_Send(y, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
}

static const struct { const char *name; void (*verb)(void); } verbs[] = {
	{"all-reduce", allreduce}, {"broadcast", broadcast}, {"all-gather", collect}, {"reduce-scatter", scatter}, {"all-to-all", exchange},
	{"barrier", barrier}, {"gather", gather}, {"ping-pong", pingpong},
};

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc != 5) return 2;
	void (*verb)(void) = NULL;
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
		if (strcmp(argv[1], verbs[i].name) == 0) verb = verbs[i].verb;
	if (!verb) return 2;
	bytes = atoi(argv[2]);
	int calls = atoi(argv[3]), chained = strcmp(argv[4], "chained") == 0;
	count = bytes / sizeof *x;
	part = count / size;
	size_t room = (size_t)bytes * (verb == gather ? size : 1) + sizeof *x;
	x = malloc(room);
	y = malloc(bytes + sizeof *y);
	memset(x, 0, room); // touches the pages
	memset(y, 0, bytes);
	double *took = calloc(calls, sizeof *took);
	for (int i = -3; i < calls; i++) {
		if (!chained || i == 0) MPI_Barrier(MPI_COMM_WORLD);
		double began = MPI_Wtime();
		verb();
		if (i >= 0) took[i] = (MPI_Wtime() - began) * 1e6;
	}
	if (!chained && verb != gather) MPI_Allreduce(MPI_IN_PLACE, took, calls, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	for (int i = 0; i < calls && rank == 0; i++) printf("took;%g\n", took[i]);
	MPI_Finalize();
	return 0;
}
