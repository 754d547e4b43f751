/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * What the stand-in's programs share. Each is named as upstream's and takes the same arguments and needs the same capabilities.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))
#define LENGTH(array) (sizeof(array) / sizeof(*(array)))
#define CAPABILITY(number) (UINT64_C(1) << (number))

struct capability_sets { uint64_t effective, permitted, inheritable; };

UNUSED static struct capability_sets
capabilities(void)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct half[2];

	if (syscall(SYS_capget, &header, half) < 0)
		err(EXIT_FAILURE, "failed to get capabilities");
	return (struct capability_sets){
	    half[0].effective | (uint64_t)half[1].effective << 32,
	    half[0].permitted | (uint64_t)half[1].permitted << 32,
	    half[0].inheritable | (uint64_t)half[1].inheritable << 32,
	};
}

UNUSED static void
set_capabilities(struct capability_sets sets)
{
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct half[2];

	for (int i = 0; i < 2; i++)
		half[i] = (struct __user_cap_data_struct){(uint32_t)(sets.effective >> 32 * i), (uint32_t)(sets.permitted >> 32 * i),
		    (uint32_t)(sets.inheritable >> 32 * i)};
	if (syscall(SYS_capset, &header, half) < 0)
		err(EXIT_FAILURE, "failed to set capabilities");
}

/* Has exactly these, which a user has only where the +caps package gave the file them. */
UNUSED static void
need_capabilities(uint64_t wanted)
{
	struct capability_sets have = capabilities();

	/* The files that a layer made unreadable for others stay readable for root. */
	wanted |= have.permitted & (CAPABILITY(CAP_DAC_OVERRIDE) | CAPABILITY(CAP_DAC_READ_SEARCH));
	set_capabilities((struct capability_sets){wanted, wanted, 0});
}

/* Replaces the environment with the valid lines KEY=VALUE of a file. */
UNUSED static void
load_environment(const char *path)
{
	FILE *file = fopen(path, "r");
	char *line = NULL, *value;
	size_t room = 0;

	if (file == NULL || clearenv() != 0)
		err(EXIT_FAILURE, "failed to load environment: %s", path);
	while (getline(&line, &room, file) >= 0) {
		size_t key = strspn(line, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_");

		line[strcspn(line, "\n")] = '\0';
		if (key == 0 || line[key] != '=' || (line[0] >= '0' && line[0] <= '9'))
			continue;
		value = line + key;
		*value++ = '\0';
		setenv(line, value, 1);
	}
	free(line);
	fclose(file);
}

/* Takes "--name" or "--name VALUE" off the front of the arguments. */
UNUSED static bool
option(int *argc, char ***argv, const char *name, const char **value)
{
	int taken = value == NULL ? 1 : 2;

	if (*argc <= taken || strcmp((*argv)[1], name) != 0)
		return false;
	if (value != NULL)
		*value = (*argv)[2];
	(*argv)[taken] = (*argv)[0];
	*argv += taken;
	*argc -= taken;
	return true;
}
