/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for Pyxis (see README.md): what its files share.
 */
#ifndef PYXIS_H
#define PYXIS_H

#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#define LENGTH(array) (sizeof(array) / sizeof(*(array)))
#define MESSAGE "pyxis: "

/* What plugstack.conf says. */
struct config {
	char *runtime_path;
	bool execute_entrypoint, job_scope, sbatch_support, use_squashfuse;
};

struct mount {
	char *source, *target, *flags;
};

/* What the user asks for. A switch is -1 where nothing was said. */
struct options {
	char *image, *workdir, *name, *name_flags;
	struct mount *mounts;
	size_t mount_count;
	char **variables;
	size_t variable_count;
	int mount_home, remap_root, entrypoint, entrypoint_log, writable;
};

/* Whose containers these are. */
struct owner {
	uid_t uid;
	gid_t gid;
	gid_t *groups;
	int group_count;
};

/* The job step. */
struct job {
	struct owner owner;
	uint32_t id, step, local_tasks, all_tasks;
	bool privileged;
	char **environment;
	char directory[4096];
};

/* options.c */
extern struct options options;
int read_config(struct config *config, int count, char **words);
int register_options(spank_t spank);
void read_option_variables(spank_t spank);
bool container_wanted(void);
int add_mount(const char *source, const char *target, const char *flags);
bool variable_wanted(const char *name);

/* enroot.c: running Enroot, or another program, as the user, with its output kept. */
typedef int (*prepare_function)(void);
extern int output;
char *format(const char *form, ...) __attribute__((format(printf, 1, 2)));
char *read_line(FILE *file);
pid_t run(const struct owner *owner, prepare_function prepare, char *const words[]);
int run_and_wait(const struct owner *owner, prepare_function prepare, char *const words[]);
FILE *run_and_read(const struct owner *owner, prepare_function prepare, char *const words[]);
void print_output(bool error, const char *program);

/* container.c: one container, as slurmstepd sees it. */
int container_init(const struct config *config, struct job *job);
int container_choose(void);
int container_enter(spank_t spank);
int container_leave(void);

#endif
