// The verbs of bench groups over MPI: prints "VERB;P50;P90;MEAN" in µs. The argument is the time for each, in seconds.
// Or, for bench gather, the arguments are gather BYTES COUNT: prints "took;TIME" for each, in µs on the rank that receives.
// Or, for bench collective, they are collective VERB BYTES COUNT CHAINED, of float32: the same on the slowest rank, behind a barrier, or on
// the first rank of calls that follow each other.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;
static char *all, *one;

static void barrier(int n) { MPI_Barrier(MPI_COMM_WORLD); }
static void allgather(int n) { MPI_Allgather(one, n, MPI_BYTE, all, n, MPI_BYTE, MPI_COMM_WORLD); }
static void broadcast(int n) { MPI_Bcast(one, n, MPI_BYTE, 0, MPI_COMM_WORLD); }

static void pingpong(int n) {
	if (rank > 1) return;
	if (rank == 0) MPI_Send(one, n, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
	MPI_Recv(one, n, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (rank == 1) MPI_Send(one, n, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
}

static int compare(const void *a, const void *b) {
	double x = *(double *)a, y = *(double *)b;
	return (x > y) - (x < y);
}

static void measure(const char *name, void (*verb)(int), int n, int fenced, double budget) {
	double began = 0, mean = 0;
	for (int i = 0; i < 50; i++) {
		if (i == 10) began = MPI_Wtime();
		if (fenced) MPI_Barrier(MPI_COMM_WORLD);
		verb(n);
	}
	int count = budget / ((MPI_Wtime() - began) / 40 + 1e-7);
	if (count > 5000) count = 5000;
	if (count < 5) count = 5;
	MPI_Bcast(&count, 1, MPI_INT, 0, MPI_COMM_WORLD);
	double *took = calloc(count, sizeof *took);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; i < count; i++) {
		if (fenced) MPI_Barrier(MPI_COMM_WORLD);
		began = MPI_Wtime();
		verb(n);
		took[i] = (MPI_Wtime() - began) * 1e6;
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (fenced) MPI_Allreduce(MPI_IN_PLACE, took, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++) mean += took[i] / count;
	qsort(took, count, sizeof *took, compare);
	if (rank == 0) printf("%s;%g;%g;%g\n", name, took[count / 2], took[count * 9 / 10], mean);
	free(took);
}

static void gather(int bytes, int count) {
	char *mine = malloc(bytes), *got = rank == 0 ? malloc((size_t)bytes * size) : NULL;
	memset(mine, rank, bytes);
	for (int i = -3; i < count; i++) {
		MPI_Barrier(MPI_COMM_WORLD);
		double began = MPI_Wtime();
		MPI_Gather(mine, bytes, MPI_BYTE, got, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
		double took = MPI_Wtime() - began;
		if (i >= 0 && rank == 0) printf("took;%g\n", took * 1e6);
	}
	free(mine);
	free(got);
}

static float *x, *y; // the larger and the smaller slice of a verb, or two of a size
static int count, part; // elements of x, and of a rank's part

static void allreduce(int n) { MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void spread(int n) { MPI_Bcast(x, n, MPI_FLOAT, 0, MPI_COMM_WORLD); }
static void collect(int n) { MPI_Allgather(y, part, MPI_FLOAT, x, part, MPI_FLOAT, MPI_COMM_WORLD); }
static void scatter(int n) { MPI_Reduce_scatter_block(x, y, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); }
static void exchange(int n) { MPI_Alltoall(x, part, MPI_FLOAT, y, part, MPI_FLOAT, MPI_COMM_WORLD); }

static const struct { const char *name; void (*verb)(int); } collectives[] = {
	{"all-reduce", allreduce}, {"broadcast", spread}, {"all-gather", collect}, {"reduce-scatter", scatter}, {"all-to-all", exchange}, {"barrier", barrier},
};

static int collective(const char *name, int bytes, int calls, int chained) {
	void (*verb)(int) = NULL;
	for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++)
		if (strcmp(name, collectives[i].name) == 0) verb = collectives[i].verb;
	if (!verb) return 2;
	count = bytes / sizeof *x;
	part = count / size;
	x = calloc(count + 1, sizeof *x);
	y = calloc(count + 1, sizeof *y);
	memset(x, 0, bytes);
	memset(y, 0, bytes);
	double *took = calloc(calls, sizeof *took);
	for (int i = -3; i < calls; i++) {
		if (!chained || i == 0) MPI_Barrier(MPI_COMM_WORLD);
		double began = MPI_Wtime();
		verb(count);
		if (i >= 0) took[i] = (MPI_Wtime() - began) * 1e6;
	}
	if (!chained) MPI_Allreduce(MPI_IN_PLACE, took, calls, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	for (int i = 0; i < calls && rank == 0; i++) printf("took;%g\n", took[i]);
	return 0;
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc > 3 && strcmp(argv[1], "gather") == 0) {
		gather(atoi(argv[2]), atoi(argv[3]));
		MPI_Finalize();
		return 0;
	}
	if (argc > 5 && strcmp(argv[1], "collective") == 0) {
		int status = collective(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]));
		MPI_Finalize();
		return status;
	}
	double budget = argc > 1 ? atof(argv[1]) : 0.5;
	one = calloc(1, 1 << 20);
	all = calloc(size, 1 << 10);
	measure("barrier", barrier, 0, 0, budget);
	measure("all-gather 1 KiB", allgather, 1 << 10, 0, budget);
	measure("broadcast 1 KiB", broadcast, 1 << 10, 1, budget);
	measure("broadcast 1 MiB", broadcast, 1 << 20, 1, budget);
	measure("ping-pong 1 KiB", pingpong, 1 << 10, 0, budget);
	MPI_Finalize();
	return 0;
}
