/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in: makes a directory the root, gives up every privilege, and hands over to the container's /etc/rc. Of what a login sets up,
 * only HOME, SHELL, USER, LOGNAME, PATH and TERM; not the mailbox, utmp, locale or umask.
 */
#include "standin.h"

#include <linux/limits.h>
#include <pwd.h>

static void
switch_root(const char *root)
{
	int old = open("/", O_PATH | O_DIRECTORY);

	if (old < 0 || chdir(root) < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || fchdir(old) < 0 ||
	    mount(NULL, ".", NULL, MS_REC | MS_SLAVE, NULL) < 0 || umount2(".", MNT_DETACH) < 0 || chdir("/") < 0 ||
	    (unshare(CLONE_NEWCGROUP) < 0 && errno != EINVAL))
		err(EXIT_FAILURE, "failed to switch root: %s", root);
	close(old);
}

static void
drop_privileges(void)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		err(EXIT_FAILURE, "failed to drop privileges");
	if (geteuid() == 0)
		return;
	for (unsigned long i = 0; i < 64; i++)
		prctl(PR_CAPBSET_DROP, i, 0, 0, 0);
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	set_capabilities((struct capability_sets){0, 0, 0});
}

/* The container's own /etc/passwd, without the host's idea of where users are looked up. */
static void
log_in(void)
{
	FILE *file = fopen("/etc/passwd", "r");
	struct passwd *user = NULL;

	while (file != NULL && (user = fgetpwent(file)) != NULL && user->pw_uid != geteuid())
		continue;
	if (user != NULL) {
		setenv("HOME", user->pw_dir, 0);
		setenv("SHELL", user->pw_shell, 0);
		setenv("USER", user->pw_name, 0);
		setenv("LOGNAME", user->pw_name, 0);
	}
	setenv("TERM", "dumb", 0);
	setenv("PATH", geteuid() == 0 ? "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" : "/usr/local/bin:/usr/bin:/bin", 0);
	if (file != NULL)
		fclose(file);
	if (getenv("HOME") != NULL && chdir(getenv("HOME")) < 0)
		err(EXIT_FAILURE, "failed to change directory: %s", getenv("HOME"));
}

int
main(int argc, char **argv)
{
	const char *script = NULL, *environment = NULL, *shell, *name;
	char *copy = NULL, **line, **next, arg0[PATH_MAX];
	bool login = false;

	for (;;) {
		if (option(&argc, &argv, "--login", NULL))
			login = true;
		else if (!option(&argc, &argv, "--rcfile", &script) && !option(&argc, &argv, "--envfile", &environment))
			break;
	}
	if (argc < 2) {
		printf("Usage: %s [--login] [--rcfile FILE] [--envfile FILE] ROOTFS [COMMAND] [ARG...]\n", argv[0]);
		return EXIT_SUCCESS;
	}

	/* The script lies outside the new root: it is read through a descriptor. */
	if (script != NULL) {
		int file = open(script, O_RDONLY);

		if (file < 0 || asprintf(&copy, "/proc/self/fd/%d", file) < 0)
			err(EXIT_FAILURE, "failed to open: %s", script);
	}
	if (environment != NULL)
		load_environment(environment);
	switch_root(argv[1]);
	drop_privileges();
	argv++;
	argc--;
	if (login)
		log_in();

	shell = getenv("SHELL");
	if (shell == NULL || *shell == '\0' || access(shell, R_OK | X_OK) < 0)
		shell = "/bin/sh";
	name = strrchr(shell, '/') != NULL ? strrchr(shell, '/') + 1 : shell;
	snprintf(arg0, sizeof(arg0), "%s%s", login ? "-" : "", name);

	line = next = calloc((size_t)argc + 4, sizeof(*line));
	if (line == NULL)
		err(EXIT_FAILURE, "failed to allocate memory");
	*next++ = arg0;
	if (copy != NULL)
		*next++ = copy;
	else if (access("/etc/rc", F_OK) == 0)
		*next++ = (char *)"/etc/rc";
	else if (argc > 1 && (access(argv[1], F_OK) < 0 || access(argv[1], R_OK | X_OK) == 0)) {
		*next++ = (char *)"-c";
		if (strchr(argv[1], ' ') != NULL) {
			*next++ = *++argv;
			argc--;
		} else
			*next++ = (char *)"exec \"$@\"";
		*next++ = (char *)name;
	}
	memcpy(next, argv + 1, (size_t)(argc - 1) * sizeof(*next));
	execv(shell, line);
	err(EXIT_FAILURE, "failed to execute: %s", shell);
}
