/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for nccl-tests (see ../README.md): a test from its header to its exit code.
 */
#include "perf.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct collective collectives[] = {
	{ "all_reduce", false, true, true, true, false, NULL },
	{ "all_gather", true, false, true, false, false, "none" },
	{ "reduce_scatter", true, true, false, true, false, NULL },
	{ "alltoall", true, true, true, false, false, "none" },
	{ "alltoallv", true, true, true, false, false, "none" },
	{ "broadcast", false, true, true, false, true, "none" },
	{ "reduce", false, true, true, true, true, NULL },
	{ "gather", true, false, true, false, true, "none" },
	{ "scatter", true, true, false, false, true, "none" },
	{ "sendrecv", false, true, true, true, false, NULL },
	{ "hypercube", true, false, true, false, false, "" },
};
enum { DEVICES = 8 };	/* where none is to be seen */
static const double memory = 81559.0 * 1024 * 1024;

static double sum;
static long measured;

static int devices_of(const struct peer *peer)
{
	return peer->devices ? peer->devices : DEVICES;
}

static int first_device(const struct peer *peer)
{
	return getenv("NCCL_TESTS_DEVICE") ? atoi(getenv("NCCL_TESTS_DEVICE")) : peer->local_rank * options.threads * options.gpus;
}

static bool has_devices(const struct peer *peer)
{
	return first_device(peer) + options.threads * options.gpus <= devices_of(peer);
}

static void show_devices(const struct world *world)
{
	int each = options.threads * options.gpus;

	for (int i = 0; i < world->size * each; i++) {
		const struct peer *peer = &world->peers[i / each];
		int device = first_device(peer) + i % each;

		printf("#  Rank %2d Group %2d Pid %6d on %10s device %2d [%04x:%02x:%02x] NVIDIA H100 80GB HBM3\n", i, 0, peer->pid, peer->host,
		       device, 0, 16 + device * 4, 0);
	}
}

static void show_settings(void)
{
	bool factor = options.factor > 1;

	printf("# nccl-tests version %s nccl-headers=%d nccl-library=%d\n", NCCL_TESTS_VERSION, NCCL_VERSION_CODE, library_version());
	printf("# Collective test starting: %s\n", options.program);
	printf("# nThread %d nGpus %d minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d iters: %d agg iters: %d validation: %d graph: %d "
	       "unalign: %d\n", options.threads, options.gpus, options.least, options.most, factor ? options.factor : options.step,
	       factor ? "factor" : "bytes", options.warmups, options.iterations, options.aggregated, options.check, options.graphs,
	       options.unaligned);
	if (options.blocking == 1)
		printf("# Blocking Enabled: wait and barrier after each inner iteration (-m) \n");
	if (options.parallel_init)
		printf("# Parallel Init Enabled: threads call into NcclInitRank concurrently \n");
	printf("#\n");
}

/* Upstream reserves up to 4 GiB and one more, and needs two buffers, or three where it checks. */
static void fit_into_memory(void)
{
	double gibi = 1024.0 * 1024 * 1024, room = (memory - 4 * gibi - gibi) / (options.check ? 3 : 2);

	if ((double)options.most <= room)
		return;
	options.most = (size_t)room;
	if (options.least > options.most)
		options.least = options.most;
	printf("#\n# Reducing maxBytes to %zu due to memory limitation\n", options.most);
}

static void show_titles(void)
{
	const char *const titles[2][5] = { { "size", "count", "type", "redop", "root" }, { "(B)", "(elements)", "", "", "" } };
	const char *const values[2][4] = {
		{ options.cpu_time ? "cputime" : "time", "algbw", "busbw", "#wrong" }, { "(us)", "(GB/s)", "(GB/s)", "" },
	};
	const char *const stamps[2] = { "timestamp", "%Y-%m-%d %H:%M:%S" };

	printf("#\n# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n", "", "", "", "", "");
	for (int line = 0; line < 2; line++) {
		printf("# %10s  %12s  %8s  %6s  %6s", titles[line][0], titles[line][1], titles[line][2], titles[line][3], titles[line][4]);
		for (int i = 0; i < 2; i++)
			printf("  %7s  %6s  %6s  %6s", values[line][0], values[line][1], values[line][2], values[line][3]);
		printf(" %*s\n", options.timestamps ? 19 : 0, options.timestamps ? stamps[line] : "");
	}
}

/* As many decimals as there is room for, at most two. */
static void show_number(double value, int width)
{
	char text[64];

	for (int decimals = 2; decimals >= 0; decimals--)
		if (snprintf(text, sizeof(text), "%*.*f", width, decimals, value) <= width) {
			printf("  %s", text);
			return;
		}
	printf("  %*.*e", width, width >= 7, value);
}

static void show_half(const struct world *world, const struct collective *what, int ranks, double bytes, bool in_place)
{
	double seconds = model_seconds(world, what, ranks, bytes, in_place);
	double algorithm = bytes / seconds / 1e9, bus = algorithm * model_factor(what, ranks);
	char now[32] = "";
	time_t clock = time(NULL);

	show_number(seconds * 1e6, 7);
	show_number(algorithm, 6);
	show_number(bus, 6);
	printf(options.check ? "  %6g" : "    N/A", 0.0);
	strftime(now, sizeof(now), "%Y-%m-%d %H:%M:%S", localtime(&clock));
	if (in_place && options.timestamps)
		printf("%21s", now);
	sum += bus;
	measured++;
}

static void show_row(const struct world *world, const struct collective *what, int ranks, size_t size, int type, int operation, int root)
{
	size_t element = (size_t)type_sizes[type], count = size / element, bytes, whole;
	const char *name = what->no_op ? what->no_op : operation_names[operation];

	if (what->split)
		count = (count / (size_t)ranks) & ~(16 / element - 1);
	whole = count * element * (what->split ? (size_t)ranks : 1);
	bytes = strcmp(what->name, "hypercube") ? whole : count * element * (size_t)(ranks - 1);
	printf("%12zu  %12zu  %8s  %6s  %6d", whole, count, type_names[type], name, root);
	show_half(world, what, ranks, (double)bytes, false);
	show_half(world, what, ranks, (double)bytes, true);
	printf("\n");
}

static void measure(const struct world *world, const struct collective *what, int ranks, int type, int operation, int root)
{
	long cycle = options.cycles;

	do
		for (size_t size = options.least; size <= options.most; size = options.factor > 1 ? size * options.factor : size + options.step) {
			show_row(world, what, ranks, size, type, operation, root);
			if (!size && options.factor > 1)
				break;
		}
	while (--cycle);
}

static void measure_all(const struct world *world, const struct collective *what, int ranks)
{
	bool types = options.type == ALL, operations = what->reduces && options.operation == ALL, roots = what->rooted && options.root < 0;

	for (int type = types ? 0 : options.type; type < (types ? TYPES : options.type + 1); type++)
		for (int operation = operations ? 0 : options.operation; operation < (operations ? OPERATIONS : options.operation + 1); operation++)
			for (int root = roots ? 0 : options.root; root < (roots ? ranks : options.root + 1); root++)
				measure(world, what, ranks, type, what->reduces ? operation : 0, what->rooted ? root : -1);
}

static int show_end(void)
{
	const char *wanted = getenv("NCCL_TESTS_MIN_BW");
	double least = wanted ? atof(wanted) : -1, average = measured ? sum / (double)measured : 0;
	bool enough = average >= least * 0.9;

	printf("# %-20s : %d %s\n", "Out of bounds values", 0, "OK");
	printf("# %-20s : %g %s\n", "Avg bus bandwidth", average, !wanted ? "" : enough ? "OK" : "FAILED");
	printf("#\n# Collective test concluded: %s\n#\n\n", options.program);
	return enough ? SUCCESS : WRONG_RESULTS;
}

/* The first process speaks for all. */
static int run(struct world *world)
{
	const struct collective *what = collectives;
	int ranks = world->size * options.threads * options.gpus;

	while (strcmp(what->name, collective_name))
		what++;
	if (options.json)
		printf("# skipping json output; %s not accessible\n", options.json);
	show_settings();
	printf("# Using devices\n");
	for (int i = 0; i < world->size; i++)
		if (!has_devices(&world->peers[i]))
			return NOT_IMPLEMENTED;
	show_devices(world);
	fit_into_memory();
	library_start(world, first_device(&world->self), ranks);
	show_titles();
	measure_all(world, what, ranks);
	return show_end();
}

int main(int count, char **words)
{
	struct world world = { 0 };
	int code;

	setvbuf(stdout, NULL, _IOLBF, 0);
	library_version();
	code = read_options(count, words);
	if (code >= 0)
		return code;
	code = world_join(&world);
	if (code)
		return code;
	if (!has_devices(&world.self))
		fprintf(stderr, "Invalid number of GPUs: %d requested but only %d were found.\nPlease check the number of processes and GPUs per process.\n",
			first_device(&world.self) + options.threads * options.gpus, devices_of(&world.self));
	else if (world.rank)
		library_start(&world, first_device(&world.self), world.size * options.threads * options.gpus);
	code = world_end(&world, world.rank ? 0 : run(&world));
	if (code)
		printf(" .. %s pid %d: Test failure common.cu:1081\n", world.self.host, world.self.pid);
	return code;
}
