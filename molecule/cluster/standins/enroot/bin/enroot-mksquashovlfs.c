/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in: lays layers over each other with overlayfs and makes one squashfs of them. Needs the capability that the +caps package gives it.
 */
#include "standin.h"

#include <paths.h>

int
main(int argc, char **argv)
{
	char *environment[] = {(char *)"PATH=" _PATH_STDPATH, NULL};
	char *layers, *at = getenv("MOUNTPOINT");

	if (argc < 3) {
		printf("Usage: %s DIR[:DIR...] DEST [options]\n", argv[0]);
		return EXIT_SUCCESS;
	}
	need_capabilities(CAPABILITY(CAP_SYS_ADMIN));
	if (at == NULL || *at != '/')
		errx(EXIT_FAILURE, "MOUNTPOINT environment variable must be an absolute path");
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_PRIVATE | MS_REC, NULL) < 0)
		err(EXIT_FAILURE, "failed to create mount namespace");
	if (asprintf(&layers, "lowerdir=%s", argv[1]) < 0 || mount(NULL, at, "overlay", 0, layers) < 0)
		err(EXIT_FAILURE, "failed to mount overlay: %s", argv[1]);

	/* What runs with the overlay in sight may do no more than its user. */
	need_capabilities(0);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		err(EXIT_FAILURE, "failed to drop privileges");
	argv[1] = at;
	execvpe("mksquashfs", argv, environment);
	err(EXIT_FAILURE, "failed to execute mksquashfs");
}
