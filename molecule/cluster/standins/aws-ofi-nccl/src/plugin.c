/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for aws-ofi-nccl (see ../README.md): finds EFA devices, and sends nothing.
 */
#include <dirent.h>
#include <rdma/fabric.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What NCCL's net plugin interface has in version 10. */
enum { SUCCESS = 0, SYSTEM_ERROR = 2 };
enum { LOG_WARN = 2, LOG_INFO = 3 };
enum { INIT = 1, NET = 16 };
typedef void (*logger)(int level, unsigned long flags, const char *function, int line, const char *format, ...);

#define SAY(level, ...) log(level, INIT | NET, __func__, __LINE__, "NET/OFI " __VA_ARGS__)

static int nics;

static bool is_efa(const char *folder, const char *name)
{
	char path[512], link[512] = "", vendor[16] = "";
	FILE *file;

	snprintf(path, sizeof(path), "%s/%.200s/device/driver", folder, name);
	if (readlink(path, link, sizeof(link) - 1) > 0 && strrchr(link, '/') && !strcmp(strrchr(link, '/'), "/efa"))
		return true;
	snprintf(path, sizeof(path), "%s/%.200s/device/vendor", folder, name);
	file = fopen(path, "r");
	if (!file)
		return false;
	if (!fgets(vendor, sizeof(vendor), file))
		vendor[0] = '\0';
	fclose(file);
	return !strncmp(vendor, "0x1d0f", 6);
}

static int count_nics(void)
{
	const char *root = getenv("SANDBOX_ROOT");
	struct dirent *entry;
	char folder[256];
	int count = 0;
	DIR *open;

	snprintf(folder, sizeof(folder), "%s/sys/class/infiniband", root ? root : "");
	open = opendir(folder);
	if (!open)
		return 0;
	while ((entry = readdir(open)))
		count += entry->d_name[0] != '.' && is_efa(folder, entry->d_name);
	closedir(open);
	return count;
}

static int start(logger log, void *profiler)
{
	const char *provider = getenv("FI_PROVIDER");

	(void)profiler;
	SAY(LOG_INFO, "Initializing " PACKAGE_STRING);
	SAY(LOG_INFO, "Using Libfabric version %u.%u", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
	SAY(LOG_INFO, "Plugin selected platform: AWS");
	SAY(LOG_INFO, "Configuring AWS-specific options");
	SAY(LOG_INFO, "Setting provider_filter to efa");
	nics = provider && strcmp(provider, "efa") ? 0 : count_nics();
	if (!nics) {
		SAY(LOG_INFO, "No eligible providers were found");
		return SYSTEM_ERROR;
	}
	SAY(LOG_INFO, "Using transport protocol RDMA (platform set)");
	SAY(LOG_INFO, "Selected provider is efa, fabric is efa (found %d nics)", nics);
	return SUCCESS;
}

static int devices(int *count)
{
	*count = nics;
	return SUCCESS;
}

static int cannot(void)
{
	return SYSTEM_ERROR;
}

static const struct {
	const char *name;
	int (*init)(logger log, void *profiler);
	int (*devices)(int *count);
	int (*others[19])(void);
} plugin = {
	"Libfabric", start, devices,
	{ cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot, cannot },
};

/* NCCL looks for a table of this name; upstream's plugin has those of other versions too. */
extern const __typeof__(plugin) ncclNetPlugin_v10 __attribute__((alias("plugin")));
