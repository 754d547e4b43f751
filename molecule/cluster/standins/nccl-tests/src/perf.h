/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for nccl-tests (see ../README.md): what its files share.
 */
#ifndef PERF_H
#define PERF_H

#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define LENGTH(array) (sizeof(array) / sizeof(*(array)))

/* How a program ends; upstream's numbers. */
enum { SUCCESS = 0, CUDA_ERROR = 2, NCCL_ERROR = 3, NOT_IMPLEMENTED = 5, WRONG_RESULTS = 7 };

/* What is measured. */
struct collective {
	const char *name;
	bool split;		/* a rank's share of the size is what counts */
	bool whole_send, whole_receive;	/* all ranks' shares together are sent, or received */
	bool reduces, rooted;
	const char *no_op;	/* what stands in the place of the operation */
};
extern const char collective_name[];

/* What the command line says. */
struct options {
	int threads, gpus, iterations, aggregated, warmups, cycles, check, operation, type, root;
	int parallel_init, blocking, graphs, cpu_time, timestamps, average, registered, unaligned;
	size_t least, most, step, factor;
	const char *json, *program;
};
extern struct options options;
extern const char *const type_names[], *const operation_names[];
extern const int type_sizes[];
enum { TYPES = 12, OPERATIONS = 6, ALL = -1 };

/* Returns an exit code, or -1 to go on. */
int read_options(int count, char **words);

/* One process of the job, as the first one knows it. */
struct peer {
	int rank, local_rank, pid, devices, nics;
	double slow;		/* how many times slower its node's part of the fabric is */
	bool slow_inside;	/* the node's own links too */
	char host[64], node[64];
};

struct world {
	int size, rank, nodes;
	struct peer self, *peers;	/* all of them, in the first process */
	int *sockets;
};

/* Where the machine's files are: SANDBOX_ROOT is for tests. */
const char *machine(const char *path);
int world_join(struct world *world);
/* Hands the first process' exit code to all, and returns it. */
int world_end(struct world *world, int code);

/* The library, and what NCCL_DEBUG shows of it. */
int library_version(void);
void library_start(const struct world *world, int device, int ranks);
/* The EFA devices that NCCL uses on this node; 0 where it goes over sockets. */
int library_network(bool first);

/* How many seconds one call takes that moves so many bytes. */
double model_seconds(const struct world *world, const struct collective *what, int ranks, double bytes, bool in_place);
double model_factor(const struct collective *what, int ranks);

#endif
