/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in: runs a command in new user and mount namespaces.
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

int
main(int argc, char **argv)
{
	bool user = false, mounts = false, remap_root = false;

	for (;;) {
		if (option(&argc, &argv, "--user", NULL))
			user = true;
		else if (option(&argc, &argv, "--mount", NULL))
			mounts = true;
		else if (option(&argc, &argv, "--remap-root", NULL))
			remap_root = true;
		else
			break;
	}
	if (argc < 2) {
		printf("Usage: %s [--user] [--mount] [--remap-root] COMMAND [ARG...]\n", argv[0]);
		return EXIT_SUCCESS;
	}
	if (user)
		create_user_namespace(remap_root);
	if (mounts && (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) < 0))
		err(EXIT_FAILURE, "failed to create mount namespace");
	if (user)
		ignore_changes_of_owner();
	syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0);
	execvp(argv[1], argv + 1);
	err(EXIT_FAILURE, "failed to execute: %s", argv[1]);
}
