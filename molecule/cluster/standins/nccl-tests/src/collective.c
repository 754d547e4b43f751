/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for nccl-tests (see ../README.md): the name of the program's collective.
 */
#include "perf.h"

#define TEXT(word) #word
#define NAME(word) TEXT(word)

const char collective_name[] = NAME(COLLECTIVE);
