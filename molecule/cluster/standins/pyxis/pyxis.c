/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for Pyxis (see README.md): what Slurm calls.
 */
#include "pyxis.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#pragma GCC visibility push(default)
SPANK_PLUGIN(pyxis, 1)
spank_f slurm_spank_init, slurm_spank_init_post_opt, slurm_spank_user_init, slurm_spank_task_init, slurm_spank_task_exit, slurm_spank_job_epilog;
#pragma GCC visibility pop

static struct config config;
static struct job job;
static bool enabled;

/* slurmd, as it starts: makes the last directory of the path that all users share. */
static int
make_runtime_path(void)
{
	mode_t before = umask(0);
	int failed = mkdir(config.runtime_path, 0755) < 0 && errno != EEXIST ? -1 : 0;

	if (failed)
		slurm_error(MESSAGE "slurmd: couldn't mkdir %s: %s", config.runtime_path, strerror(errno));
	umask(before);
	return failed;
}

/* slurmstepd, still root: makes the user's own directory in it. */
static int
make_user_path(void)
{
	char *path = format("%s/%u", config.runtime_path, job.owner.uid);
	int failed = mkdir(path, 0700);

	if (failed && errno == EEXIST)
		failed = 0;
	else if (failed)
		slurm_error(MESSAGE "couldn't mkdir %s: %s", path, strerror(errno));
	else {
		failed = chown(path, job.owner.uid, job.owner.gid);
		if (failed) {
			slurm_error(MESSAGE "couldn't chown %s: %s", path, strerror(errno));
			rmdir(path);
		}
	}
	free(path);
	return failed;
}

static int
read_job(spank_t spank)
{
	static const char *const negatives[] = {"no", "false", "n", "f"};
	char superuser[16];

	if (spank_get_item(spank, S_JOB_UID, &job.owner.uid) != ESPANK_SUCCESS || spank_get_item(spank, S_JOB_GID, &job.owner.gid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &job.owner.groups, &job.owner.group_count) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_ID, &job.id) != ESPANK_SUCCESS || spank_get_item(spank, S_JOB_STEPID, &job.step) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &job.local_tasks) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_TOTAL_TASK_COUNT, &job.all_tasks) != ESPANK_SUCCESS) {
		slurm_error(MESSAGE "couldn't get job information");
		return -1;
	}
	if (spank_getenv(spank, "PWD", job.directory, sizeof(job.directory)) != ESPANK_SUCCESS)
		slurm_info(MESSAGE "couldn't get job cwd path");
	if (job.owner.uid == 0 && spank_getenv(spank, "ENROOT_ALLOW_SUPERUSER", superuser, sizeof(superuser)) == ESPANK_SUCCESS) {
		job.privileged = true;
		for (size_t i = 0; i < LENGTH(negatives); i++)
			if (strcasecmp(superuser, negatives[i]) == 0)
				job.privileged = false;
	}
	return 0;
}

/* A copy, as Slurm's own changes with each variable that is set. */
static int
read_environment(spank_t spank)
{
	char **lines;
	size_t count = 0;

	if (spank_get_item(spank, S_JOB_ENV, &lines) != ESPANK_SUCCESS) {
		slurm_error(MESSAGE "couldn't get job environment");
		return -1;
	}
	while (lines[count] != NULL)
		count++;
	job.environment = calloc(count + 1, sizeof(char *));
	for (size_t i = 0; i < count; i++)
		job.environment[i] = strdup(lines[i]);
	return 0;
}

int
slurm_spank_init(spank_t spank, int count, char **words)
{
	spank_context_t context = spank_context();

	if (context == S_CTX_SLURMD)
		slurm_info(MESSAGE "version v" PYXIS_VERSION);
	/* As upstream's, srun does not look at plugstack.conf's options: it learns of a wrong one from the nodes. */
	if (context != S_CTX_LOCAL && context != S_CTX_JOB_SCRIPT && read_config(&config, count, words) < 0) {
		slurm_error(MESSAGE "failed to parse configuration");
		return -1;
	}
	switch (context) {
	case S_CTX_SLURMD:
		return make_runtime_path();
	case S_CTX_ALLOCATOR:
		if (!config.sbatch_support)
			return 0;
		/* fallthrough */
	case S_CTX_LOCAL:
	case S_CTX_REMOTE:
		if (register_options(spank) == 0)
			return 0;
		slurm_error(MESSAGE "failed to register arguments");
		return -1;
	default:
		return 0;
	}
}

int
slurm_spank_init_post_opt(spank_t spank, int count, char **words)
{
	spank_context_t context = spank_context();

	(void)count;
	(void)words;
	if (context != S_CTX_LOCAL && context != S_CTX_ALLOCATOR && context != S_CTX_REMOTE)
		return 0;
	read_option_variables(spank);
	if (!container_wanted() || context != S_CTX_REMOTE)
		return 0;
	enabled = true;
	return read_job(spank) < 0 || make_user_path() < 0 ? -1 : container_init(&config, &job);
}

int
slurm_spank_user_init(spank_t spank, int count, char **words)
{
	char **script;
	int script_words;

	(void)count;
	(void)words;
	if (!enabled)
		return 0;
	/* A batch script lies in slurmd's spool directory, which the container does not have. */
	if (job.step == SLURM_BATCH_SCRIPT && spank_get_item(spank, S_JOB_ARGV, &script_words, &script) == ESPANK_SUCCESS && script_words > 0)
		add_mount(script[0], script[0], "x-create=file,bind,ro,nosuid,nodev,private");
	return read_environment(spank) < 0 ? -1 : container_choose();
}

int
slurm_spank_task_init(spank_t spank, int count, char **words)
{
	(void)count;
	(void)words;
	if (!enabled)
		return 0;
	/* MPI has set variables since. */
	return read_environment(spank) < 0 ? -1 : container_enter(spank);
}

int
slurm_spank_task_exit(spank_t spank, int count, char **words)
{
	(void)spank;
	(void)count;
	(void)words;
	return enabled ? container_leave() : 0;
}

/* With container_scope=job, named containers end with their job. */
int
slurm_spank_job_epilog(spank_t spank, int count, char **words)
{
	struct owner owner = {0};
	uint32_t id;
	char *prefix, *name;
	FILE *list;
	int failed = 0;

	if (read_config(&config, count, words) < 0) {
		slurm_error(MESSAGE "epilog: failed to parse configuration");
		return -1;
	}
	if (!config.job_scope)
		return 0;
	setenv("PATH", "/usr/local/bin:/usr/bin:/bin", 0);
	unsetenv("HOME");
	if (spank_get_item(spank, S_JOB_UID, &owner.uid) != ESPANK_SUCCESS || spank_get_item(spank, S_JOB_GID, &owner.gid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_ID, &id) != ESPANK_SUCCESS) {
		slurm_error(MESSAGE "epilog: couldn't get job information");
		return -1;
	}
	list = run_and_read(&owner, NULL, (char *const[]){"enroot", "list", NULL});
	if (list == NULL) {
		print_output(true, "enroot");
		slurm_error(MESSAGE "epilog: couldn't get list of existing containers");
		return -1;
	}
	prefix = format("pyxis_%u_", id);
	while ((name = read_line(list)) != NULL) {
		if (strncmp(name, prefix, strlen(prefix)) == 0 && run_and_wait(&owner, NULL, (char *const[]){"enroot", "remove", "-f", name, NULL}) < 0) {
			slurm_error(MESSAGE "epilog: failed to remove container %s", name);
			print_output(true, "enroot");
			failed = -1;
		}
		free(name);
	}
	fclose(list);
	free(prefix);
	return failed;
}
