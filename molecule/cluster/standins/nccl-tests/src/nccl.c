/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for nccl-tests (see ../README.md): the library, and what NCCL_DEBUG shows of it.
 */
#include "perf.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NONE, VERSION, WARN, INFO };

/* The beginning of what a network plugin exports as ncclNetPlugin_v10. */
typedef void (*logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
struct plugin {
	const char *name;
	int (*init)(logger log, void *profiler);
	int (*devices)(int *count);
};

static int level, gpu, process;
static char node[64];

int library_version(void)
{
	int version = 0;

	ncclGetVersion(&version);
	return version;
}

static void info(const char *format, ...)
{
	va_list rest;

	if (level < INFO)
		return;
	printf("%s:%d:%ld [%d] NCCL INFO ", node, process, syscall(SYS_gettid), gpu);
	va_start(rest, format);
	vprintf(format, rest);
	va_end(rest);
	putchar('\n');
}

/* The levels of NCCL's own logger: 1 version, 2 warn, 3 info. */
static void plugin_says(int its_level, unsigned long flags, const char *file, int line, const char *format, ...)
{
	char text[1024];
	va_list rest;

	(void)flags;
	va_start(rest, format);
	vsnprintf(text, sizeof(text), format, rest);
	va_end(rest);
	if (its_level == WARN && level >= WARN)
		printf("\n%s:%d:%ld [%d] %s:%d NCCL WARN %s\n", node, process, syscall(SYS_gettid), gpu, file, line, text);
	else if (its_level == INFO)
		info("%s", text);
}

/* A line NAME=VALUE of a configuration file counts where the environment does not say otherwise. */
static void read_configuration(const char *path)
{
	FILE *file = fopen(path, "r");
	char line[1024];

	if (!file)
		return;
	while (fgets(line, sizeof(line), file)) {
		char *value = strchr(line, '=');

		line[strcspn(line, "\n")] = '\0';
		if (*line == '#' || !value)
			continue;
		*value++ = '\0';
		setenv(line, value, 0);
	}
	fclose(file);
}

static void read_environment(void)
{
	const char *home = getenv("HOME"), *file = getenv("NCCL_CONF_FILE"), *wanted;
	static const char *const names[] = { "", "VERSION", "WARN", "INFO" };
	char path[512];

	if (file && *file) {
		read_configuration(file);
	} else if (home) {
		snprintf(path, sizeof(path), "%s/.nccl.conf", home);
		read_configuration(path);
	}
	read_configuration(machine("/etc/nccl.conf"));
	wanted = getenv("NCCL_DEBUG");
	for (int i = 1; wanted && i < (int)LENGTH(names); i++)
		if (!strcasecmp(wanted, names[i]))
			level = i;
	if (wanted && (!strcasecmp(wanted, "TRACE") || !strcasecmp(wanted, "ABORT")))
		level = INFO;
	process = getpid();
	gethostname(node, sizeof(node) - 1);
	node[strcspn(node, ".")] = '\0';
}

/* Whether NCCL_SOCKET_IFNAME allows an interface: prefixes, all of them excluded after a ^, or exact names after a =. */
static bool allowed(const char *interface)
{
	const char *list = getenv("NCCL_SOCKET_IFNAME");
	bool excludes, exact, listed = false;

	if (!list || !*list)
		return strncmp(interface, "docker", 6) && strcmp(interface, "lo");
	excludes = *list == '^';
	list += excludes;
	exact = *list == '=';
	list += exact;
	while (*list) {
		size_t length = strcspn(list, ",");

		listed |= !strncmp(interface, list, length) && (!exact || strlen(interface) == length);
		list += length + (list[length] == ',');
	}
	return listed != excludes;
}

static void socket_name(char *name, size_t size)
{
	struct ifaddrs *all, *one;
	char address[INET_ADDRSTRLEN];

	snprintf(name, size, "lo:127.0.0.1<0>");
	if (getifaddrs(&all))
		return;
	for (one = all; one; one = one->ifa_next) {
		if (!one->ifa_addr || one->ifa_addr->sa_family != AF_INET || !(one->ifa_flags & IFF_UP) || !allowed(one->ifa_name))
			continue;
		inet_ntop(AF_INET, &((struct sockaddr_in *)one->ifa_addr)->sin_addr, address, sizeof(address));
		snprintf(name, size, "%s:%s<0>", one->ifa_name, address);
		break;
	}
	freeifaddrs(all);
}

static void *open_plugin(char *library, size_t size)
{
	const char *wanted = getenv("NCCL_NET_PLUGIN");
	void *handle;

	snprintf(library, size, "%s", wanted && *wanted ? wanted : "libnccl-net.so");
	if (wanted)
		info("NCCL_NET_PLUGIN set by environment to %s", wanted);
	if (!strcasecmp(library, "none"))
		return NULL;
	handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!handle && strchr(library, '/') == NULL && strncmp(library, "lib", 3)) {
		snprintf(library, size, "libnccl-net-%s.so", wanted);
		handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	}
	if (!handle) {
		const char *why = dlerror();

		if (why && strstr(why, "cannot open shared object file") && strstr(why, library) == why)
			info("NET/Plugin: Could not find: %s", library);
		else
			info("NET/Plugin: %s: %s", library, why ? why : "unknown error");
	}
	return handle;
}

int library_network(bool first)
{
	char library[256], name[64];
	struct plugin *plugin;
	void *handle;
	int count = 0;

	if (!first) {
		/* Asked before anything is shown. */
		read_environment();
		int shown = level;

		level = NONE;
		count = library_network(true);
		level = shown;
		return count;
	}
	handle = open_plugin(library, sizeof(library));
	plugin = handle ? dlsym(handle, "ncclNetPlugin_v10") : NULL;
	if (handle && !plugin)
		info("External network plugin %s is unsupported", library);
	if (plugin) {
		info("NET/Plugin: Loaded net plugin %s (v10)", plugin->name);
		info("Successfully loaded external network plugin %s", library);
		if (plugin->init(plugin_says, NULL) || plugin->devices(&count) || count <= 0) {
			info("Failed to initialize NET plugin %s", plugin->name);
			count = 0;
		}
	}
	if (!count) {
		socket_name(name, sizeof(name));
		info("NET/IB : No device found.");
		info("Failed to initialize NET plugin IB");
		info("NET/Socket : Using [0]%s", name);
	}
	info("Initialized NET plugin %s", count ? plugin->name : "Socket");
	info("Assigned NET plugin %s to comm", count ? plugin->name : "Socket");
	info("Using network %s", count ? plugin->name : "Socket");
	return count;
}

/* How many channels NCCL has for each pair of ranks that send to each other: fewer where they are many. */
static int channels_of_pair(int ranks)
{
	return ranks <= 64 ? 4 : ranks <= 128 ? 2 : 1;
}

static void show_way(int channel, int connection, int from, int to, int each, const char *way)
{
	info("Channel %02d/%d : %d[%d] -> %d[%d]%s", channel, connection, from, from % each, to, to % each, way);
}

/*
 * A line for each connection, as upstream has it: of a rank that sends to all others there are two for each of them on another node and each channel, and one
 * for each on its own node. In a ring each rank has one before it and one after it; here they have the same place on the nodes beside this one.
 */
static void show_channels(const struct world *world, int device, int nics)
{
	const char *number = getenv("SLURM_STEP_NUM_NODES"), *direct = access(machine("/etc/sandbox/no-gpudirect"), F_OK) ? "/GDRDMA" : "";
	int nodes = number ? atoi(number) : 1, size = world->size, each = nodes > 0 ? size / nodes : 0, own;
	bool pairs = !strncmp(collective_name, "alltoall", 8);
	int channels = pairs ? channels_of_pair(size) : 2;
	char way[96];

	if (nodes < 1 || each < 1 || size < 2)
		return;
	own = world->rank / each;
	for (int channel = 0; channel < channels; channel++) {
		char over[64];

		if (nics)
			snprintf(over, sizeof(over), "NET/Libfabric/%d%s", (device * 4 + channel) % nics, direct);
		else
			snprintf(over, sizeof(over), "NET/Socket/0");
		for (int step = 1; step < size; step++) {
			int next = (world->rank + step) % size, before = (world->rank + size - step) % size;

			if (next / each == own && (pairs || next == own * each + (world->rank + 1) % each))
				show_way(channel, pairs, world->rank, next, each, " via P2P/CUMEM");
			if (nodes < 2 || (!pairs && step != each))
				continue;
			if (before / each != own) {
				snprintf(way, sizeof(way), " [receive] via %s%s", over, pairs ? "/Shared" : "");
				show_way(channel, pairs, before, world->rank, each, way);
			}
			if (next / each != own) {
				snprintf(way, sizeof(way), " [send] via %s%s", over, pairs ? "/Shared" : "");
				show_way(channel, pairs, world->rank, next, each, way);
			}
		}
	}
}

void library_start(const struct world *world, int device, int ranks)
{
	int version = library_version(), nics;
	char name[64], shown[64];

	gpu = device;
	snprintf(shown, sizeof(shown), "NCCL version %d.%d.%d+cuda13.0", version / 10000, version / 100 % 100, version % 100);
	if (!world->rank && (level == VERSION || level == WARN))
		puts(shown);
	if (level < INFO)
		return;
	socket_name(name, sizeof(name));
	if (getenv("NCCL_SOCKET_IFNAME"))
		info("NCCL_SOCKET_IFNAME set by environment to %s", getenv("NCCL_SOCKET_IFNAME"));
	info("Bootstrap: Using %s", name);
	info("cudaDriverVersion 13000");
	if (!world->rank)
		info("%s", shown);
	nics = library_network(true);
	for (int step = 0; step < 2; step++) {
		snprintf(shown, sizeof(shown), step ? "" : "[Rank %d] ", world->rank);
		info("%sncclCommInitRankConfig comm 0x%x rank %d nranks %d cudaDev %d nvmlDev %d busId %x000 commId 0x%x - Init %s", shown,
		     0x5581a000 + process, world->rank, ranks, device, device, 16 + device * 4, 0x1f2e3d4c, step ? "COMPLETE" : "START");
	}
	show_channels(world, device, nics);
}
