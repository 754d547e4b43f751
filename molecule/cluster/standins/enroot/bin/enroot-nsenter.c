/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in: runs a command in new user and mount namespaces, or in those of a running container.
 */
#include "standin.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

/* One user owns every file of a container: what would change an owner succeeds and does nothing, so that package managers work. */
static void
ignore_changes_of_owner(void)
{
	static const int ignored[] = {
#ifdef SYS_chown
	    SYS_chown, SYS_lchown,
#endif
	    SYS_fchown, SYS_fchownat, SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setgroups,
	};
	struct sock_filter code[2 * LENGTH(ignored) + 2];
	struct sock_fprog program = {0, code};

	code[program.len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < LENGTH(ignored); i++) {
		code[program.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)ignored[i], 0, 1);
		code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO);
	}
	code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		err(EXIT_FAILURE, "failed to register seccomp filter");
}

static void
write_map(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);

	if (file < 0 || write(file, text, strlen(text)) < 0)
		err(EXIT_FAILURE, "failed to create user namespace");
	close(file);
}

static void
create_user_namespace(bool remap_root)
{
	char uids[64], gids[64];

	snprintf(uids, sizeof(uids), "%u %u 1", remap_root ? 0 : geteuid(), geteuid());
	snprintf(gids, sizeof(gids), "%u %u 1", remap_root ? 0 : getegid(), getegid());
	if (unshare(CLONE_NEWUSER) < 0)
		err(EXIT_FAILURE, "failed to create user namespace");
	write_map("/proc/self/setgroups", "deny");
	write_map("/proc/self/gid_map", gids);
	write_map("/proc/self/uid_map", uids);

	/* Who is not root loses his capabilities when he runs a program, unless they are ambient. */
	if (!remap_root) {
		struct capability_sets sets = capabilities();

		sets.inheritable = sets.permitted;
		set_capabilities(sets);
		for (unsigned long i = 0; i < 64; i++)
			if (sets.permitted & CAPABILITY(i) && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, i, 0, 0) < 0)
				err(EXIT_FAILURE, "failed to set capabilities");
	}
}

static void
join(const char *pid, const char *kind, int type)
{
	char theirs[64], ours[64];
	struct stat their, our;
	int file;

	snprintf(theirs, sizeof(theirs), "/proc/%s/ns/%s", pid, kind);
	snprintf(ours, sizeof(ours), "/proc/self/ns/%s", kind);
	/* One may not join the user namespace that one is in. */
	if (stat(theirs, &their) == 0 && stat(ours, &our) == 0 && their.st_dev == our.st_dev && their.st_ino == our.st_ino)
		return;
	file = open(theirs, O_RDONLY | O_CLOEXEC);
	if (file < 0 || setns(file, type) < 0)
		err(EXIT_FAILURE, "failed to join %s namespace", type == CLONE_NEWNS ? "mount" : kind);
	close(file);
}

int
main(int argc, char **argv)
{
	bool user = false, mounts = false, remap_root = false;
	const char *target = NULL, *environment = NULL, *directory = NULL;

	for (;;) {
		if (option(&argc, &argv, "--user", NULL))
			user = true;
		else if (option(&argc, &argv, "--mount", NULL))
			mounts = true;
		else if (option(&argc, &argv, "--remap-root", NULL))
			remap_root = true;
		else if (!option(&argc, &argv, "--target", &target) && !option(&argc, &argv, "--envfile", &environment) &&
		         !option(&argc, &argv, "--workdir", &directory))
			break;
	}
	if (argc < 2) {
		printf("Usage: %s [--target PID] [--user] [--mount] [--remap-root] [--envfile FILE] [--workdir DIR] COMMAND [ARG...]\n", argv[0]);
		return EXIT_SUCCESS;
	}
	if (target != NULL) {
		if (user)
			join(target, "user", CLONE_NEWUSER);
		if (mounts)
			join(target, "mnt", CLONE_NEWNS);
		join(target, "cgroup", CLONE_NEWCGROUP);
	} else {
		if (user)
			create_user_namespace(remap_root);
		if (mounts && (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0))
			err(EXIT_FAILURE, "failed to create mount namespace");
	}
	/* The file may be a pipe that is among those closed below. */
	if (environment != NULL)
		load_environment(environment);
	if (user)
		ignore_changes_of_owner();
	if (directory != NULL && chdir(directory) < 0)
		err(EXIT_FAILURE, "failed to change directory: %s", directory);
	syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0);
	execvp(argv[1], argv + 1);
	err(EXIT_FAILURE, "failed to execute: %s", argv[1]);
}
