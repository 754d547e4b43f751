/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for Pyxis (see README.md): a job step's container, from its image to its removal.
 */
#include "pyxis.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct config *config;
static struct job *job;

static struct {
	char *name, *image_file;
	bool exists, runs, temporary, imported;
	/* It is started from its image, which is mounted: nothing is unpacked. */
	bool direct;
	/* What was found wrong too early to reach srun. */
	bool failed;
} container;

/* What the step's tasks, which are processes of their own, know together. */
static struct {
	pthread_mutex_t lock;
	atomic_uint entered, started, ended;
	pid_t holder, inside;
} *shared;

int
container_init(const struct config *with, struct job *of)
{
	config = with;
	job = of;
	return 0;
}

/* Enroot sees the job's variables, but those that say where the administrator wants things, or belong to one task. */
static const char *const kept_from_enroot[] = {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID",
    "PMIX_RANK", "PMI_FD", "ENROOT_LIBRARY_PATH", "ENROOT_SYSCONF_PATH", "ENROOT_RUNTIME_PATH", "ENROOT_CACHE_PATH", "ENROOT_DATA_PATH",
    "ENROOT_TEMP_PATH", "ENROOT_ZSTD_OPTIONS", "ENROOT_TRANSFER_RETRIES", "ENROOT_CONNECT_TIMEOUT", "ENROOT_MAX_CONNECTIONS",
    "ENROOT_ALLOW_HTTP"};

static bool
is_kept_from_enroot(const char *line)
{
	for (size_t i = 0; i < LENGTH(kept_from_enroot); i++) {
		size_t length = strlen(kept_from_enroot[i]);

		if (strncmp(line, kept_from_enroot[i], length) == 0 && line[length] == '=')
			return true;
	}
	return false;
}

static int
set_environment(void)
{
	const struct { const char *name; int said; } switches[] = {{"ENROOT_MOUNT_HOME", options.mount_home},
	    {"ENROOT_REMAP_ROOT", options.remap_root}, {"ENROOT_ROOTFS_WRITABLE", options.writable}};
	char *path = getenv("PATH");

	/* slurmd's PATH is the only one that the administrator set. */
	path = path != NULL ? strdup(path) : NULL;
	clearenv();
	if (path != NULL)
		setenv("PATH", path, 1);
	for (char **line = job->environment; *line != NULL; line++)
		if (!is_kept_from_enroot(*line))
			putenv(*line);
	setenv("SLURM_JOB_UID", format("%u", job->owner.uid), 1);
	setenv("SLURM_JOB_GID", format("%u", job->owner.gid), 1);
	for (size_t i = 0; i < LENGTH(switches); i++)
		if (switches[i].said != -1)
			setenv(switches[i].name, switches[i].said ? "y" : "n", 1);
	setenv("PYXIS_RUNTIME_PATH", config->runtime_path, 1);
	setenv("PYXIS_VERSION", PYXIS_VERSION, 1);
	return 0;
}

static int
enroot(char *const words[])
{
	return run_and_wait(&job->owner, set_environment, words);
}

/* Finds a container's process: 0 where it does not run, -1 where it does not exist. */
static int
find(const char *name, pid_t *process)
{
	FILE *list = run_and_read(&job->owner, set_environment, (char *const[]){"enroot", "list", "-f", NULL});
	char *line;

	*process = -1;
	if (list == NULL) {
		print_output(true, "enroot");
		slurm_error(MESSAGE "couldn't get list of existing container filesystems");
		return -1;
	}
	while (*process < 0 && (line = read_line(list)) != NULL) {
		char *rest, *first = strtok_r(line, " ", &rest), *second = strtok_r(NULL, " ", &rest);

		if (first != NULL && strcmp(first, name) == 0)
			*process = second != NULL ? atoi(second) : 0;
		free(line);
	}
	fclose(list);
	return 0;
}

static int
share_memory(void)
{
	pthread_mutexattr_t kind;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || pthread_mutexattr_init(&kind) != 0)
		return -1;
	pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
	shared->holder = shared->inside = -1;
	return pthread_mutex_init(&shared->lock, &kind);
}

static int
choose_named(void)
{
	pid_t process;

	container.name = config->job_scope ? format("pyxis_%u_%s", job->id, options.name) : format("pyxis_%s", options.name);
	if (find(container.name, &process) < 0) {
		slurm_error(MESSAGE "couldn't get list of containers");
		return -1;
	}
	if (strcmp(options.name_flags, "create") == 0 && process >= 0) {
		slurm_error(MESSAGE "error: \"create\" flag was passed to --container-name but the container already exists");
		return -1;
	}
	if (strcmp(options.name_flags, "exec") == 0 && process <= 0) {
		slurm_error(MESSAGE "error: \"exec\" flag was passed to --container-name but the container is not running");
		return -1;
	}
	if (process > 0 && strcmp(options.name_flags, "no_exec") == 0)
		process = 0;
	container.exists = process >= 0;
	container.runs = process > 0;
	if (container.runs) {
		slurm_info(MESSAGE "reusing existing container namespaces");
		shared->inside = process;
		if (options.mount_count > 0) {
			slurm_spank_log(MESSAGE "ignoring --container-mounts when attaching to a running container");
			options.mount_count = 0;
		}
	} else if (container.exists)
		slurm_info(MESSAGE "reusing existing container filesystem");
	else if (options.image == NULL) {
		slurm_error(MESSAGE "error: a container with name \"%s\" does not exist, and --container-image is not set", container.name);
		return -1;
	}
	return 0;
}

/* Runs where errors do not reach srun, so a failure waits until the first task starts. */
int
container_choose(void)
{
	container.failed = true;
	if (share_memory() != 0)
		return 0;
	if (options.name != NULL) {
		if (choose_named() < 0)
			return 0;
	} else {
		container.name = config->job_scope ? format("pyxis_%u_%u.%u", job->id, job->id, job->step) : format("pyxis_%u.%u", job->id, job->step);
		container.temporary = true;
	}
	if (!container.exists) {
		bool is_file = *options.image == '/' || *options.image == '.';

		/* What lasts longer than the step has to be unpacked; and what Enroot imports is. */
		container.direct = config->use_squashfuse && container.temporary && is_file;
		if (is_file)
			container.image_file = strdup(options.image);
		else {
			container.imported = true;
			container.image_file = format("%s/%u/%u.%u.squashfs", config->runtime_path, job->owner.uid, job->id, job->step);
		}
	}
	container.failed = false;
	return 0;
}

static int
import_image(void)
{
	bool has_scheme = strncmp(options.image, "docker://", 9) == 0;
	char *uri = format("%s%s", has_scheme ? "" : "docker://", options.image);
	int failed;

	/* One task may have a person before it, who wonders why it takes so long. */
	if (job->all_tasks <= 1)
		slurm_spank_log(MESSAGE "importing docker image: %s", options.image);
	failed = enroot((char *const[]){"enroot", "import", "--output", container.image_file, uri, NULL});
	free(uri);
	if (failed) {
		slurm_error(MESSAGE "failed to import docker image: %s", options.image);
		print_output(true, "enroot");
		return -1;
	}
	slurm_spank_log(MESSAGE "imported docker image: %s", options.image);
	return 0;
}

static int
create(void)
{
	bool is_file = *options.image == '/' || *options.image == '.';
	int failed = 0;

	if (container.direct) {
		slurm_info(MESSAGE "skipping container creation (squashfuse enabled)");
		return 0;
	}
	if (!is_file)
		failed = import_image();
	if (!failed) {
		slurm_info(MESSAGE "creating container filesystem: %s", container.name);
		failed = enroot((char *const[]){"enroot", "create", "--name", container.name, container.image_file, NULL});
		if (failed) {
			slurm_error(MESSAGE "failed to create container filesystem for image: %s", options.image);
			print_output(true, "enroot");
		}
	}
	if (container.imported)
		unlink(container.image_file);
	return failed;
}

/* A field of an fstab, inside double quotes of the shell. */
static void
print_field(FILE *to, const char *field)
{
	for (; *field != '\0'; field++) {
		if (strchr(" \t\n\\", *field) != NULL)
			fprintf(to, "\\\\%03o", (unsigned)*field);
		else
			putc(*field, to);
	}
}

static bool
entrypoint_wanted(void)
{
	return options.entrypoint == -1 ? config->execute_entrypoint : options.entrypoint;
}

/* What `enroot start` is to do beyond its own: mounts, no entry point unless wanted, variables that keep their value. */
static char *
write_configuration(void)
{
	char *path = strdup("/tmp/.enroot_config_XXXXXX");
	int descriptor;
	FILE *file;

	for (size_t i = 0; i < options.mount_count; i++) {
		struct stat source;

		if (*options.mounts[i].source == '/' && stat(options.mounts[i].source, &source) < 0 && (errno == ENOENT || errno == ENOTDIR)) {
			slurm_error(MESSAGE "--container-mounts: source path does not exist: %s", options.mounts[i].source);
			return NULL;
		}
	}
	descriptor = mkstemp(path);
	file = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
	if (file == NULL)
		return NULL;
	if (options.mount_count > 0) {
		fprintf(file, "mounts() {\n");
		for (size_t i = 0; i < options.mount_count; i++) {
			fprintf(file, "\techo \"");
			print_field(file, options.mounts[i].source);
			putc(' ', file);
			print_field(file, options.mounts[i].target);
			fprintf(file, " %s\"\n", options.mounts[i].flags);
		}
		fprintf(file, "}\n");
	}
	if (!entrypoint_wanted())
		fprintf(file, "hooks() {\n\techo 'exec \"$@\"' > \"${ENROOT_ROOTFS}/etc/rc.local\"\n}\n");
	if (options.variable_count > 0) {
		fprintf(file, "environ() {\n");
		for (size_t i = 0; i < options.variable_count; i++)
			fprintf(file, "\t[ -z \"${%1$s-}\" ] || echo \"%1$s=${%1$s}\"\n", options.variables[i]);
		fprintf(file, "}\n");
	}
	fclose(file);
	return path;
}

/* Starts a process that stops itself inside the container, and holds its namespaces until the tasks have joined them. */
static pid_t
start(void)
{
	char *path, *target = container.direct ? container.image_file : container.name;
	pid_t process = -1;
	int status = 0;

	slurm_info(MESSAGE "starting container%s: %s", container.direct ? " from squashfs" : "", target);
	path = write_configuration();
	if (path == NULL) {
		slurm_error(MESSAGE "couldn't create enroot start configuration script");
		return -1;
	}
	process = run(&job->owner, set_environment,
	    (char *const[]){"enroot", "start", "--conf", path, target, "sh", "-c", "kill -STOP $$ ; exit 0", NULL});
	if (process < 0)
		slurm_error(MESSAGE "failed to start container");
	else if (waitpid(process, &status, WUNTRACED) < 0)
		slurm_error(MESSAGE "container start error: %s", strerror(errno));
	else if (!WIFSTOPPED(status)) {
		if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
			slurm_error(MESSAGE "container start failed with error code: %d", WEXITSTATUS(status));
		else
			slurm_error(MESSAGE "container exited too soon");
		if (entrypoint_wanted())
			slurm_error(MESSAGE "if the image has an unusual entrypoint, try using --no-container-entrypoint");
	}
	unlink(path);
	free(path);
	if (process >= 0 && WIFSTOPPED(status)) {
		if (entrypoint_wanted() && options.entrypoint_log == 1)
			print_output(false, "enroot");
		return process;
	}
	print_output(true, "enroot");
	return -1;
}

/* The first task makes the container; the others wait for it. */
static int
start_once(void)
{
	int failed = -1, locked = pthread_mutex_lock(&shared->lock);

	if (locked == EOWNERDEAD) {
		pthread_mutex_consistent(&shared->lock);
		slurm_error(MESSAGE "a previous task terminated unexpectedly during container setup");
		shared->holder = shared->inside = -1;
		goto end;
	}
	if (atomic_fetch_add(&shared->entered, 1) == 0) {
		if (!container.exists && create() < 0)
			goto end;
		shared->holder = start();
		if (!container.runs)
			shared->inside = shared->holder;
	}
	if (shared->holder < 0 || shared->inside < 0)
		slurm_error(MESSAGE "container was not started successfully by another task");
	else
		failed = 0;
end:
	pthread_mutex_unlock(&shared->lock);
	return failed;
}

static int
open_namespace(const char *kind, bool needed)
{
	char *theirs = format("/proc/%d/ns/%s", shared->inside, kind), *ours = format("/proc/self/ns/%s", kind);
	struct stat their, our;
	int file = open(theirs, O_RDONLY | O_CLOEXEC);

	if (file >= 0 && !needed && fstat(file, &their) == 0 && stat(ours, &our) == 0 && their.st_ino == our.st_ino) {
		close(file);
		file = -1;
	} else if (file < 0 && needed)
		slurm_error(MESSAGE "unable to open %s namespace file: %s", strcmp(kind, "mnt") == 0 ? "mount" : kind, strerror(errno));
	free(theirs);
	free(ours);
	return file;
}

static int
join_namespaces(void)
{
	static const struct { const char *kind, *name; int type; } kinds[] = {{"user", "user", CLONE_NEWUSER}, {"cgroup", "cgroup", CLONE_NEWCGROUP},
	    {"mnt", "mount", CLONE_NEWNS}, {"ipc", "IPC", CLONE_NEWIPC}, {"uts", "UTS", CLONE_NEWUTS}, {"net", "network", CLONE_NEWNET}};
	int files[LENGTH(kinds)];

	/* /proc is the container's own once its mounts are joined, so all are opened first. */
	for (size_t i = 0; i < LENGTH(kinds); i++) {
		bool needed = i == 2 || (i == 0 && !job->privileged);

		files[i] = i == 0 && job->privileged ? -1 : open_namespace(kinds[i].kind, needed);
		if (needed && files[i] < 0)
			return -1;
	}
	for (size_t i = 0; i < LENGTH(kinds); i++) {
		if (files[i] < 0)
			continue;
		if (setns(files[i], kinds[i].type) < 0) {
			slurm_error(MESSAGE "couldn't join %s namespace: %s", kinds[i].name, strerror(errno));
			return -1;
		}
		close(files[i]);
	}
	return 0;
}

/* The image's variables outrank the job's, but for those the user named. */
static int
take_environment(spank_t spank)
{
	static const char *const locale[] = {"LANG", "LANGUAGE", "LC_ALL"};
	char *path = format("/proc/%d/environ", shared->holder), *line = NULL;
	FILE *file = fopen(path, "r");
	size_t room = 0;

	if (file == NULL) {
		slurm_error(MESSAGE "couldn't read %s", path);
		return -1;
	}
	free(path);
	for (size_t i = 0; i < LENGTH(locale); i++)
		if (!variable_wanted(locale[i]))
			spank_unsetenv(spank, locale[i]);
	while (getdelim(&line, &room, '\0', file) > 0) {
		char *value = strchr(line, '=');

		if (value == NULL)
			continue;
		*value++ = '\0';
		spank_setenv(spank, line, value, !variable_wanted(line));
	}
	free(line);
	fclose(file);
	return 0;
}

/* As Enroot does: what would change an owner succeeds and does nothing. */
static int
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
		code[program.len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)ignored[i], 0, 1);
		code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO);
	}
	code[program.len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* In a task, as the user, before its prolog: from here on it is inside. */
int
container_enter(spank_t spank)
{
	char *link, directory[PATH_MAX];
	const char *workdir = options.workdir;
	ssize_t length;

	if (container.failed || start_once() < 0)
		return -1;
	link = format("/proc/%d/cwd", shared->holder);
	length = readlink(link, directory, sizeof(directory) - 1);
	free(link);
	if (length < 0) {
		slurm_error(MESSAGE "couldn't read container cwd: %s", strerror(errno));
		return -1;
	}
	directory[length] = '\0';
	if (take_environment(spank) < 0 || join_namespaces() < 0)
		return -1;
	if (chdir(workdir != NULL ? workdir : directory) < 0) {
		slurm_error(MESSAGE "couldn't chdir to %s: %s", workdir != NULL ? workdir : directory, strerror(errno));
		return -1;
	}
	if (!job->privileged && ignore_changes_of_owner() < 0) {
		slurm_error(MESSAGE "seccomp filter failed: %s", strerror(errno));
		return -1;
	}
	/* The tasks keep the namespaces alive now. The processes that mount an image end with the one that started them. */
	if (atomic_fetch_add(&shared->started, 1) == job->local_tasks - 1 && !container.direct && kill(shared->holder, SIGCONT) < 0) {
		slurm_error(MESSAGE "couldn't send SIGCONT to container process: %s", strerror(errno));
		return -1;
	}
	return 0;
}

/* In slurmstepd, as a task has ended: the last one removes the container. */
int
container_leave(void)
{
	if (shared == NULL || atomic_fetch_add(&shared->ended, 1) != job->local_tasks - 1)
		return 0;
	/* A cancelled import leaves its file behind. */
	if (container.imported)
		unlink(container.image_file);
	if (container.temporary && !container.direct) {
		slurm_info(MESSAGE "removing container filesystem: %s", container.name);
		if (enroot((char *const[]){"enroot", "remove", "-f", container.name, NULL}) < 0)
			slurm_info(MESSAGE "failed to remove container filesystem: %s", container.name);
	}
	return 0;
}
