/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for HyperPod's plugin of Slurm, which has a job step resumed on a node that has replaced a faulty one:
 * the option of srun, who may use the option, and the line of each task. README.md says from where that is known.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <slurm/spank.h>

SPANK_PLUGIN(auto_resume, 1);

static int wanted = 0;

static int take(int value, const char *argument, int remote)
{
	wanted = argument != NULL && atoi(argument) != 0;
	return ESPANK_SUCCESS;
}

static struct spank_option auto_resume = {
	"auto-resume", "0|1", "resume the job step after a hardware failure", 1, 0, take,
};

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
	/* sbatch and salloc do not know the option. */
	if (spank_context() != S_CTX_LOCAL && spank_context() != S_CTX_REMOTE)
		return ESPANK_SUCCESS;
	return spank_option_register(spank, &auto_resume);
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
	/* Before srun asks for an allocation of its own, and sets the variable. */
	if (!wanted || spank_context() != S_CTX_LOCAL || getenv("SLURM_JOB_ID"))
		return ESPANK_SUCCESS;
	slurm_error("Auto Resume can only run within an exiting allocation");
	return -1; /* what is not negative does not end srun */
}

int slurm_spank_task_init(spank_t spank, int count, char **arguments)
{
	uint32_t job = 0, step = 0;
	int task = 0;

	if (!wanted)
		return ESPANK_SUCCESS;
	spank_get_item(spank, S_JOB_ID, &job);
	spank_get_item(spank, S_JOB_STEPID, &step);
	spank_get_item(spank, S_TASK_ID, &task);
	fprintf(stderr, "[Auto Resume] Info: JobID: %u StepID: %u TaskID: %d process_task_init\n", job, step, task);
	return ESPANK_SUCCESS;
}
