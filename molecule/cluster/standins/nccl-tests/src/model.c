/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for nccl-tests (see ../README.md): how long a call takes. A latency, a term for what does not overlap, and a bandwidth.
 */
#include "perf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Bus bandwidth in GB/s of large sizes, as seen on nodes with 8 H100 and 32 EFA devices: on one node, on two, on more. */
static const struct peak {
	const char *name;
	double one, two, more;
} peaks[] = {
	{ "all_reduce", 480, 504, 400 },
	{ "all_gather", 370, 368, 362 },
	{ "reduce_scatter", 370, 368, 362 },
	{ "alltoall", 340, 92, 58 },
	{ "alltoallv", 320, 85, 54 },
	{ "sendrecv", 350, 46, 45 },
	{ "", 340, 300, 280 },
};
enum { NICS = 32 };
static const double socket_peak = 2.4;

double model_factor(const struct collective *what, int ranks)
{
	if (!strcmp(what->name, "all_reduce"))
		return 2.0 * (ranks - 1) / ranks;
	return what->split && strcmp(what->name, "hypercube") ? (ranks - 1.0) / ranks : 1;
}

static bool is(const char *variable, const char *value)
{
	return getenv(variable) && !strcmp(getenv(variable), value);
}

/* What the slowest node allows. */
static double bandwidth(const struct world *world, const struct collective *what, double *latency)
{
	const struct peak *peak = peaks;
	double slow = 1, value;
	int nics = NICS;

	while (*peak->name && strcmp(peak->name, what->name))
		peak++;
	for (int i = 0; i < world->size; i++) {
		const struct peer *peer = &world->peers[i];

		if (world->nodes > 1 || peer->slow_inside)
			slow = fmax(slow, peer->slow);
		if (peer->nics < nics)
			nics = peer->nics;
	}
	if (world->nodes == 1) {
		*latency = 18e-6;
		value = peak->one;
	} else if (!nics) {
		*latency = 180e-6;
		return socket_peak / slow;
	} else {
		*latency = 66e-6;
		value = (world->nodes == 2 ? peak->two : peak->more * (1 - 0.01 * log2(world->nodes / 4.0))) * nics / NICS;
		/* The plugin's tuner knows the fabric better than the library. */
		if (is("NCCL_TUNER_PLUGIN", "none"))
			value *= 0.94;
	}
	if (is("NCCL_NVLS_ENABLE", "0") && !strcmp(what->name, "all_reduce"))
		value *= world->nodes == 1 ? 0.76 : 0.95;
	return value / slow;
}

double model_seconds(const struct world *world, const struct collective *what, int ranks, double bytes, bool in_place)
{
	double latency, peak = bandwidth(world, what, &latency) * 1e9, factor = model_factor(what, ranks);
	/* The same each time, and yet no two numbers alike. */
	double noise = 1 + 0.004 * sin(log2(bytes + 1) * 12.9898 + (in_place ? 78.233 : 0));

	if (ranks == 1)
		return (5e-6 + bytes / 1.5e12) * noise;
	return (latency + sqrt(bytes) * (world->nodes == 1 ? 3e-9 : 16.8e-9) + bytes * factor / peak) * noise;
}
