/* Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * A stand-in for Open MPI, for the sandbox: ranks are Slurm's or mpirun's, and nothing is sent. */
#include <stdlib.h>
#include "mpi.h"

static int number(const char *ours, const char *slurms, int otherwise)
{
	const char *text = getenv(ours);

	if (!text)
		text = getenv(slurms);
	return text ? atoi(text) : otherwise;
}

int MPI_Init(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	return MPI_SUCCESS;
}

int MPI_Comm_rank(MPI_Comm comm, int *rank)
{
	(void)comm;
	*rank = number("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", 0);
	return MPI_SUCCESS;
}

int MPI_Comm_size(MPI_Comm comm, int *size)
{
	(void)comm;
	*size = number("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", 1);
	return MPI_SUCCESS;
}

int MPI_Barrier(MPI_Comm comm)
{
	(void)comm;
	return MPI_SUCCESS;
}

int MPI_Finalize(void)
{
	return MPI_SUCCESS;
}
