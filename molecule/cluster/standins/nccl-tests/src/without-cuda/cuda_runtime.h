/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * What nccl.h wants of CUDA, where there is no CUDA.
 */
#ifndef CUDA_RUNTIME_H
#define CUDA_RUNTIME_H
#define CUDART_VERSION 0
#include <stddef.h>
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
#endif
