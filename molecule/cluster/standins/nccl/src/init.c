/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for NCCL: see ../README.md.
 */
#include "nccl.h"

#define TEXT(word) #word
#define WRITTEN(major, minor, patch) "NCCL version " TEXT(major) "." TEXT(minor) "." TEXT(patch) "+cuda13.0"

/* Upstream logs it; others read it in the file. */
const char ncclVersionText[] = WRITTEN(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);

ncclResult_t
ncclGetVersion(int *version)
{
	*version = NCCL_VERSION_CODE;
	return ncclSuccess;
}
