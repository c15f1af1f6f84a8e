/* Collective operations, messages and windows of MPI, with data that everybody can work out and checks.
   Prints "N checks" and ends with 0 if all of them hold. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, size, checks, wrong;

static void check(const char *what, int count, long found, long expected)
{
	checks++;
	if (found == expected)
		return;
	if (wrong++ < 10)
		printf("rank %d: %s of %d: found %ld, expected %ld\n", rank, what, count, found, expected);
}

/* What a rank contributes at a place. */
static long value(int of, int at)
{
	return (long)of * 1000003 + at * 7 + 1;
}

static void all(const char *what, int count, const long *found, long (*expected)(int))
{
	int at, bad = 0;

	for (at = 0; at < count; at++)
		if (found[at] != expected(at) && !bad++)
			check(what, count, found[at], expected(at));
	if (!bad)
		check(what, count, 0, 0);
}

static int root;
static long of_root(int at) { return value(root, at); }
static long sum(int at)
{
	long total = 0;
	for (int of = 0; of < size; of++)
		total += value(of, at);
	return total;
}
static long prefix(int at)
{
	long total = 0;
	for (int of = 0; of <= rank; of++)
		total += value(of, at);
	return total;
}
static int block;
static long gathered(int at) { return value(at / block, at % block); }
static long turned(int at) { return value(at / block, rank * block + at % block); }
static long scattered(int at) { return sum(rank * block + at); }

static void collectives(int count)
{
	long *mine = malloc(sizeof(long) * count * size), *got = malloc(sizeof(long) * count * size);
	int at;

	block = count;
	for (at = 0; at < count * size; at++)
		mine[at] = value(rank, at);
	for (root = 0; root < size; root++) {
		for (at = 0; at < count; at++)
			got[at] = rank == root ? value(rank, at) : -1;
		MPI_Bcast(got, count, MPI_LONG, root, MPI_COMM_WORLD);
		all("broadcast", count, got, of_root);
		MPI_Reduce(mine, got, count, MPI_LONG, MPI_SUM, root, MPI_COMM_WORLD);
		if (rank == root)
			all("reduce", count, got, sum);
		MPI_Gather(mine, count, MPI_LONG, got, count, MPI_LONG, root, MPI_COMM_WORLD);
		if (rank == root)
			all("gather", count * size, got, gathered);
	}
	MPI_Allreduce(mine, got, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	all("allreduce", count, got, sum);
	MPI_Allgather(mine, count, MPI_LONG, got, count, MPI_LONG, MPI_COMM_WORLD);
	all("allgather", count * size, got, gathered);
	MPI_Alltoall(mine, count, MPI_LONG, got, count, MPI_LONG, MPI_COMM_WORLD);
	all("alltoall", count * size, got, turned);
	MPI_Scan(mine, got, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	all("scan", count, got, prefix);
	MPI_Reduce_scatter_block(mine, got, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	all("reduce_scatter", count, got, scattered);
	MPI_Barrier(MPI_COMM_WORLD);
	free(mine);
	free(got);
}

/* To the next in the ring, from the one before. */
static void messages(int count)
{
	int to = (rank + 1) % size, at;
	long *mine = malloc(sizeof(long) * count), *got = malloc(sizeof(long) * count);
	MPI_Request requests[2];

	root = (rank + size - 1) % size;
	for (at = 0; at < count; at++)
		mine[at] = value(rank, at);
	MPI_Irecv(got, count, MPI_LONG, root, count, MPI_COMM_WORLD, &requests[0]);
	MPI_Isend(mine, count, MPI_LONG, to, count, MPI_COMM_WORLD, &requests[1]);
	MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
	all("message", count, got, of_root);
	free(mine);
	free(got);
}

/* Puts, gets and atomics into the memory of the next. */
static void window(int count)
{
	int to = (rank + 1) % size, at;
	long *memory, *got = malloc(sizeof(long) * count), one = 1, before = -1;
	MPI_Win win;

	MPI_Win_allocate(sizeof(long) * (count + 1), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
	memory[count] = 0;
	for (at = 0; at < count; at++)
		got[at] = value(rank, at);
	MPI_Win_fence(0, win);
	MPI_Put(got, count, MPI_LONG, to, 0, count, MPI_LONG, win);
	MPI_Win_fence(0, win);
	root = (rank + size - 1) % size;
	all("put", count, memory, of_root);
	MPI_Win_fence(0, win);
	MPI_Get(got, count, MPI_LONG, to, 0, count, MPI_LONG, win);
	MPI_Win_fence(0, win);
	root = rank;
	all("get", count, got, of_root);
	MPI_Win_lock_all(0, win);
	MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, count, MPI_SUM, win);
	MPI_Win_flush(0, win);
	MPI_Win_unlock_all(win);
	check("counted before", 1, before >= 0 && before < size, 1);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
		check("counted", 1, memory[count], size);
		MPI_Win_unlock(0, win);
	}
	MPI_Win_free(&win);
	free(got);
}

int main(int argc, char **argv)
{
	static const int counts[] = { 1, 33, 1000, 40000 };
	int total[2], mine[2];
	unsigned at;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	for (at = 0; at < sizeof(counts) / sizeof(counts[0]); at++) {
		messages(counts[at]);
		collectives(counts[at]);
		window(counts[at]);
	}
	mine[0] = checks, mine[1] = wrong;
	MPI_Allreduce(mine, total, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d checks of %d processes, %d wrong\n", total[0], size, total[1]);
	MPI_Finalize();
	return total[1] != 0 || size < 2;
}
