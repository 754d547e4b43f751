/* Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * What the sandbox's stand-in for Open MPI has. */
#ifndef SANDBOX_MPI_H
#define SANDBOX_MPI_H
#define OPEN_MPI 1
#define MPI_SUCCESS 0
typedef int MPI_Comm;
#define MPI_COMM_WORLD ((MPI_Comm)0)
int MPI_Init(int *argc, char ***argv);
int MPI_Comm_rank(MPI_Comm comm, int *rank);
int MPI_Comm_size(MPI_Comm comm, int *size);
int MPI_Barrier(MPI_Comm comm);
int MPI_Finalize(void);
#endif
