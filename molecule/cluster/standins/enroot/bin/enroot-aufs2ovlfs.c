/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in: turns a layer's ".wh." files into what overlayfs takes for removed. Needs the capabilities that the +caps package gives it.
 */
#include "standin.h"

#include <ftw.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#define MARK ".wh."
#define OPAQUE ".wh..wh..opq"

static int
convert(const char *path, UNUSED const struct stat *status, int type, struct FTW *place)
{
	const char *name = path + place->base;
	char *removed;

	if (strncmp(name, MARK, strlen(MARK)) != 0)
		return 0;
	if ((type == FTW_DP ? rmdir(path) : unlink(path)) < 0)
		err(EXIT_FAILURE, "failed to remove aufs whiteout: %s", path);
	if (strcmp(name, OPAQUE) == 0) {
		removed = strndup(path, (size_t)place->base);
		if (setxattr(removed, "trusted.overlay.opaque", "y", 1, 0) < 0)
			err(EXIT_FAILURE, "failed to create opaque ovlfs whiteout: %s", removed);
	} else {
		if (strncmp(name, MARK MARK, strlen(MARK MARK)) == 0)
			errx(EXIT_FAILURE, "unsupported aufs whiteout: %s", path);
		if (asprintf(&removed, "%.*s%s", place->base, path, name + strlen(MARK)) < 0 || mknod(removed, S_IFCHR | 0600, makedev(0, 0)) < 0)
			err(EXIT_FAILURE, "failed to create ovlfs whiteout: %s", removed);
	}
	free(removed);
	return 0;
}

int
main(int argc, char **argv)
{
	char *path;

	if (argc < 2) {
		printf("Usage: %s DIR\n", argv[0]);
		return EXIT_SUCCESS;
	}
	need_capabilities(CAPABILITY(CAP_SYS_ADMIN) | CAPABILITY(CAP_MKNOD));
	path = realpath(argv[1], NULL);
	if (path == NULL)
		err(EXIT_FAILURE, "failed to resolve path: %s", argv[1]);
	if (nftw(path, convert, 16, FTW_MOUNT | FTW_PHYS | FTW_DEPTH) < 0)
		err(EXIT_FAILURE, "failed to walk directory: %s", path);
	return EXIT_SUCCESS;
}
