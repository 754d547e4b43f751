/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for nccl-tests (see ../README.md): the processes of a job. Under srun they find each other over TCP, and the first one learns of all.
 */
#include "perf.h"

#include <ctype.h>
#include <dirent.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE 60	/* seconds for all processes to start */

const char *machine(const char *path)
{
	static char full[4][512];
	static int turn;
	const char *root = getenv("SANDBOX_ROOT");

	turn = (turn + 1) % 4;
	snprintf(full[turn], sizeof(full[turn]), "%s%s", root ? root : "", path);
	return full[turn];
}

static int number_of(const char *variable, int otherwise)
{
	const char *value = getenv(variable);

	return value && *value ? atoi(value) : otherwise;
}

/* GPUs are /dev/nvidia0 and so on. */
static int count_devices(void)
{
	DIR *folder = opendir(machine("/dev"));
	struct dirent *entry;
	int count = 0;

	if (!folder)
		return 0;
	while ((entry = readdir(folder)))
		count += !strncmp(entry->d_name, "nvidia", 6) && isdigit((unsigned char)entry->d_name[6]);
	closedir(folder);
	return count;
}

static void describe_self(struct peer *self)
{
	FILE *file = fopen(machine("/etc/sandbox/slow-node"), "r");
	const char *identity = getenv("NCCL_HOSTID");
	char word[16] = "";

	self->pid = getpid();
	self->devices = count_devices();
	gethostname(self->host, sizeof(self->host) - 1);
	self->host[strcspn(self->host, ".")] = '\0';
	snprintf(self->node, sizeof(self->node), "%s", identity ? identity : self->host);
	self->slow = 1;
	if (file) {
		if (fscanf(file, "%lf %15s", &self->slow, word) < 1 || self->slow < 1)
			self->slow = 1;
		self->slow_inside = !strcmp(word, "all");
		fclose(file);
	}
}

/* The node of the first process: the first name of a list such as gpu-st-p5-[1-2,4],cpu-st-c5-1. */
static void first_node(char *name, size_t size)
{
	const char *list = getenv("SLURM_STEP_NODELIST");
	const char *end, *bracket;

	snprintf(name, size, "%s", list ? list : "localhost");
	if (!list)
		return;
	end = list + strcspn(list, ",[");
	bracket = *end == '[' ? end + 1 : end;
	snprintf(name, size, "%.*s%.*s", (int)(end - list), list, *end == '[' ? (int)strcspn(bracket, ",-]") : 0, bracket);
}

static void port_of_job(char *text, size_t size)
{
	snprintf(text, size, "%d", 12000 + (number_of("SLURM_JOB_ID", getppid()) * 131 + number_of("SLURM_STEP_ID", 0)) % 20000);
}

static bool all_of(int descriptor, void *data, size_t size, bool out)
{
	for (size_t done = 0; done < size;) {
		ssize_t part = out ? send(descriptor, (char *)data + done, size - done, MSG_NOSIGNAL)
				   : recv(descriptor, (char *)data + done, size - done, 0);
		if (part <= 0)
			return false;
		done += (size_t)part;
	}
	return true;
}

static int reach(const char *node, const char *port, bool listens)
{
	struct addrinfo wanted = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM, .ai_flags = listens ? AI_PASSIVE : 0 }, *found;
	int descriptor = -1, on = 1;

	if (getaddrinfo(listens ? NULL : node, port, &wanted, &found))
		return -1;
	descriptor = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
	setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (listens ? bind(descriptor, found->ai_addr, found->ai_addrlen) || listen(descriptor, 1024)
		    : connect(descriptor, found->ai_addr, found->ai_addrlen)) {
		close(descriptor);
		descriptor = -1;
	}
	freeaddrinfo(found);
	return descriptor;
}

static bool gather(struct world *world, const char *port)
{
	struct timeval patience = { .tv_sec = PATIENCE };
	int door = reach(NULL, port, true);

	if (door < 0)
		return false;
	setsockopt(door, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	for (int missing = world->size - 1; missing; missing--) {
		struct peer peer;
		int descriptor = accept(door, NULL, NULL);

		if (descriptor < 0 || !all_of(descriptor, &peer, sizeof(peer), false) || peer.rank < 1 || peer.rank >= world->size)
			return false;
		world->peers[peer.rank] = peer;
		world->sockets[peer.rank] = descriptor;
	}
	close(door);
	return true;
}

static bool report(struct world *world, const char *port)
{
	char node[256];
	time_t end = time(NULL) + PATIENCE;

	first_node(node, sizeof(node));
	while ((world->sockets[0] = reach(node, port, false)) < 0) {
		if (time(NULL) > end)
			return false;
		usleep(20000);
	}
	return all_of(world->sockets[0], &world->self, sizeof(world->self), true);
}

static void count_nodes(struct world *world)
{
	for (int i = 0; i < world->size; i++) {
		int before = 0;

		while (before < i && strcmp(world->peers[before].node, world->peers[i].node))
			before++;
		world->nodes += before == i;
	}
}

int world_join(struct world *world)
{
	char port[16];
	bool joined = true;

	world->size = 1;
#ifdef MPI_SUPPORT
	world->size = number_of("SLURM_STEP_NUM_TASKS", 1);
	if (world->size > 1) {
		world->rank = number_of("SLURM_PROCID", 0);
		world->self.local_rank = number_of("SLURM_LOCALID", 0);
	}
#endif
	world->self.rank = world->rank;
	describe_self(&world->self);
	world->self.nics = library_network(false);
	world->peers = calloc((size_t)world->size, sizeof(*world->peers));
	world->sockets = calloc((size_t)world->size, sizeof(*world->sockets));
	world->peers[0] = world->self;
	port_of_job(port, sizeof(port));
	if (world->size > 1)
		joined = world->rank ? report(world, port) : gather(world, port);
	if (!joined) {
		printf("%s: Test NCCL failure common.cu:1192 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '\n"
		       " .. %s pid %d: Test failure common.cu:1081\n", world->self.host, world->self.host, world->self.pid);
		return NCCL_ERROR;
	}
	if (!world->rank)
		count_nodes(world);
	return SUCCESS;
}

int world_end(struct world *world, int code)
{
	if (world->rank)
		return all_of(world->sockets[0], &code, sizeof(code), false) ? code : NCCL_ERROR;
	for (int i = 1; i < world->size; i++)
		all_of(world->sockets[i], &code, sizeof(code), true);
	return code;
}
