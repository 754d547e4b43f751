/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for nccl-tests (see ../README.md): the command line.
 */
#include "perf.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define MEBI (1024UL * 1024UL)

struct options options = {
	.threads = 1, .gpus = 1, .iterations = 20, .aggregated = 1, .warmups = 1, .cycles = 1, .check = 1, .type = 7, .average = 1,
	.least = 32 * MEBI, .most = 32 * MEBI, .step = MEBI, .factor = 1,
};
const char *const type_names[] = {
	"int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2",
};
const int type_sizes[] = { 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1 };
const char *const operation_names[] = { "sum", "prod", "max", "min", "avg", "mulsum" };

/* Upstream's options: a letter, a word, what the usage says of its value, and a whole number that it sets. */
static const struct known {
	char letter;
	const char *word, *value;
	int *number;
} known[] = {
	{ 't', "nthreads", "num threads", &options.threads },
	{ 'g', "ngpus", "gpus per thread", &options.gpus },
	{ 'b', "minbytes", "min size in bytes", NULL },
	{ 'e', "maxbytes", "max size in bytes", NULL },
	{ 'i', "stepbytes", "increment size", NULL },
	{ 'f', "stepfactor", "increment factor", NULL },
	{ 'n', "iters", "iteration count", &options.iterations },
	{ 'm', "agg_iters", "aggregated iteration count", &options.aggregated },
	{ 'w', "warmup_iters", "warmup iteration count", &options.warmups },
	{ 'N', "run_cycles", "cycle count", &options.cycles },
	{ 'p', "parallel_init", "0/1", &options.parallel_init },
	{ 'c', "check", "check iteration count", &options.check },
	{ 'o', "op", "sum/prod/min/max/avg/mulsum/all", NULL },
	{ 'd', "datatype", "nccltype/all", NULL },
	{ 'r', "root", "root", &options.root },
	{ 'z', "blocking", "0/1/2/3", &options.blocking },
	{ 'y', "stream_null", "0/1", NULL },
	{ 'T', "timeout", "time in seconds", NULL },
	{ 'G', "cudagraph", "num graph launches", &options.graphs },
	{ 'C', "report_cputime", "0/1", &options.cpu_time },
	{ 'S', "report_timestamps", "0/1", &options.timestamps },
	{ 'J', "output_file", "file", NULL },
	{ 'a', "average", "0/1/2/3", &options.average },
	{ 'R', "local_register", "0/1/2", &options.registered },
	{ 'x', "cta_policy", "0/1/2", NULL },
	{ 'D', "device_implementation", "implementation number", NULL },
	{ 'V', "device_cta_count", "number", NULL },
	{ 'M', "memory", "0/1", NULL },
	{ 'u', "unalign", "index of first element", &options.unaligned },
	{ 'I', "per_iter_timing", "0/1", NULL },
	{ 'K', "per_iter_skip", "count", NULL },
};

static int read_size(const char *text, const char *name, size_t *size)
{
	char *end;
	double number = strtod(text, &end), unit = 1;

	while (*end == ' ')
		end++;
	switch (*end) {
	case 'G': case 'g': unit = 1024.0 * MEBI; break;
	case 'M': case 'm': unit = MEBI; break;
	case 'K': case 'k': unit = 1024; break;
	case '\0': break;
	default: unit = -1;
	}
	if (end == text || number * unit < 0) {
		fprintf(stderr, "invalid size specified for '%s'\n", name);
		return -1;
	}
	*size = (size_t)(number * unit);
	return 0;
}

static int read_name(const char *text, const char *const *names, int count, const char *kind, int otherwise)
{
	for (int i = 0; i < count; i++)
		if (!strcmp(text, names[i]))
			return i;
	if (!strcmp(text, "all"))
		return ALL;
	printf("invalid %s %s, defaulting to %s .. \n", kind, text, names[otherwise]);
	return otherwise;
}

static int usage(int letter)
{
	if (letter != 'h')
		printf("invalid option '%c'\n", letter);
	printf("USAGE: %s \n\t", options.program);
	for (size_t i = 0; i < LENGTH(known); i++)
		printf("[-%c,--%s <%s>] \n\t", known[i].letter, known[i].word, known[i].value);
	printf("[-h,--help]\n");
	return SUCCESS;
}

static int read_one(int letter)
{
	switch (letter) {
	case 'b': return read_size(optarg, "minbytes", &options.least);
	case 'e': return read_size(optarg, "maxbytes", &options.most);
	case 'i': return read_size(optarg, "stepBytes", &options.step);
	case 'f': options.factor = strtoul(optarg, NULL, 0); return 0;
	case 'o': options.operation = read_name(optarg, operation_names, OPERATIONS, "op", 0); return 0;
	case 'd': options.type = read_name(optarg, type_names, TYPES, "type", 7); return 0;
	case 'J': options.json = optarg; return 0;
	}
	for (size_t i = 0; i < LENGTH(known); i++)
		if (known[i].letter == letter && known[i].number)
			*known[i].number = (int)strtol(optarg, NULL, 0);
	return 0;
}

int read_options(int count, char **words)
{
	struct option table[LENGTH(known) + 2] = { 0 };
	char letters[2 * LENGTH(known) + 2] = "h", *end = letters + 1;
	int letter;

	for (size_t i = 0; i < LENGTH(known); i++) {
		table[i] = (struct option){ known[i].word, required_argument, NULL, known[i].letter };
		*end++ = known[i].letter;
		*end++ = ':';
	}
	table[LENGTH(known)] = (struct option){ "help", no_argument, NULL, 'h' };
	options.program = strrchr(words[0], '/') ? strrchr(words[0], '/') + 1 : words[0];
	while ((letter = getopt_long(count, words, letters, table, NULL)) != -1) {
		if (letter == 'h' || letter == '?')
			return usage(letter);
		if (read_one(letter))
			return 255;
	}
	if (options.least > options.most) {
		fprintf(stderr, "invalid sizes for 'minbytes' and 'maxbytes': %zu > %zu\n", options.least, options.most);
		return 255;
	}
	return -1;
}
