/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for Pyxis (see README.md): how it runs Enroot as the user.
 */
#include "pyxis.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the last program printed; what it printed on standard output, where that is wanted apart. */
int output = -1;
static int answer = -1;

/* A file in memory, whose number is no standard stream's: in an epilog those may be closed. */
static int
new_file(void)
{
	int file = memfd_create("pyxis", MFD_CLOEXEC);

	return file >= 0 && file <= STDERR_FILENO ? fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : file;
}

char *
format(const char *form, ...)
{
	va_list arguments;
	char *text;

	va_start(arguments, form);
	if (vasprintf(&text, form, arguments) < 0)
		abort();
	va_end(arguments);
	return text;
}

char *
read_line(FILE *file)
{
	char *line = NULL;
	size_t room = 0;

	if (getline(&line, &room, file) < 0) {
		free(line);
		return NULL;
	}
	line[strcspn(line, "\n")] = '\0';
	return line;
}

static void
become(const struct owner *owner)
{
	/* slurmstepd protects itself from the kernel's memory killer; what it starts is to have no such protection. */
	int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (score >= 0 && write(score, "0", 1) > 0)
		close(score);
	if (geteuid() == 0 && setgroups((size_t)owner->group_count, owner->groups) < 0)
		_exit(EXIT_FAILURE);
	if (setregid(owner->gid, owner->gid) < 0 || setreuid(owner->uid, owner->uid) < 0)
		_exit(EXIT_FAILURE);
}

pid_t
run(const struct owner *owner, prepare_function prepare, char *const words[])
{
	char *line = strdup("");
	pid_t child;

	for (size_t i = 0; words[i] != NULL; i++) {
		char *longer = format("%s%s%s", line, i > 0 ? " " : "", words[i]);

		free(line);
		line = longer;
	}
	slurm_verbose(MESSAGE "running command: \"%s\"", line);
	free(line);
	if (output >= 0)
		close(output);
	output = new_file();
	child = fork();
	if (child < 0)
		slurm_error(MESSAGE "fork error: %s", strerror(errno));
	if (child != 0)
		return child;

	int nothing = open("/dev/null", O_RDWR);

	if (nothing < 0 || output < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(answer >= 0 ? answer : output, STDOUT_FILENO) < 0 ||
	    dup2(output, STDERR_FILENO) < 0)
		_exit(EXIT_FAILURE);
	syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0);
	become(owner);
	if (prepare != NULL && prepare() < 0)
		_exit(EXIT_FAILURE);
	execvpe(words[0], words, environ);
	_exit(EXIT_FAILURE);
}

static volatile sig_atomic_t cancelled;

static void
note_cancellation(int signal)
{
	(void)signal;
	cancelled = 1;
}

int
run_and_wait(const struct owner *owner, prepare_function prepare, char *const words[])
{
	struct sigaction on_cancel = {.sa_handler = note_cancellation}, before;
	pid_t child = run(owner, prepare, words);
	int status, got;

	if (child < 0)
		return -1;
	/* Who cancels a step cancels what it waits for. */
	cancelled = 0;
	sigaction(SIGTERM, &on_cancel, &before);
	while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR)
		if (cancelled) {
			slurm_error(MESSAGE "received SIGTERM, forwarding to child %d", child);
			kill(child, SIGTERM);
			cancelled = 0;
		}
	sigaction(SIGTERM, &before, NULL);
	if (got < 0)
		slurm_error(MESSAGE "could not wait for child %d: %s", child, strerror(errno));
	else if (WIFSIGNALED(status))
		slurm_error(MESSAGE "child %d terminated with signal %d", child, WTERMSIG(status));
	else if (WEXITSTATUS(status) != 0)
		slurm_error(MESSAGE "child %d failed with error code: %d", child, WEXITSTATUS(status));
	else
		return 0;
	return -1;
}

FILE *
run_and_read(const struct owner *owner, prepare_function prepare, char *const words[])
{
	FILE *file;
	int failed;

	answer = new_file();
	failed = answer < 0 || run_and_wait(owner, prepare, words) < 0;
	file = answer >= 0 ? fdopen(answer, "r") : NULL;
	answer = -1;
	if (file != NULL && !failed) {
		rewind(file);
		return file;
	}
	if (file != NULL)
		fclose(file);
	return NULL;
}

void
print_output(bool error, const char *program)
{
	FILE *file = output >= 0 ? fdopen(output, "r") : NULL;
	char *line;

	output = -1;
	if (file == NULL)
		return;
	rewind(file);
	if (error)
		slurm_error(MESSAGE "printing %s log file:", program);
	while ((line = read_line(file)) != NULL) {
		if (error)
			slurm_error(MESSAGE "    %s", line);
		else
			slurm_spank_log("%s", line);
		free(line);
	}
	fclose(file);
}
