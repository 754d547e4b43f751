/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in: mounts the entries of an fstab under a container's root. Beyond mount(8)'s options it knows x-create=dir|file|auto, x-detach,
 * x-move, nofail and silent; fields may be missing: "tmpfs DIR", "SOURCE", "SOURCE TARGET", "SOURCE OPTIONS", "SOURCE TARGET OPTIONS".
 */
#include "standin.h"

#include <limits.h>
#include <mntent.h>
#include <sys/statvfs.h>

#define PROPAGATION (MS_PRIVATE | MS_SHARED | MS_SLAVE | MS_UNBINDABLE)

static const struct option_flag { const char *name; unsigned long set, clear; } known[] = {
    {"bind", MS_BIND, 0}, {"rbind", MS_BIND | MS_REC, 0}, {"remount", MS_REMOUNT, 0}, {"x-move", MS_MOVE, 0}, {"ro", MS_RDONLY, 0},
    {"rw", 0, MS_RDONLY}, {"nosuid", MS_NOSUID, 0}, {"suid", 0, MS_NOSUID}, {"nodev", MS_NODEV, 0}, {"dev", 0, MS_NODEV},
    {"noexec", MS_NOEXEC, 0}, {"exec", 0, MS_NOEXEC}, {"sync", MS_SYNCHRONOUS, 0}, {"async", 0, MS_SYNCHRONOUS}, {"dirsync", MS_DIRSYNC, 0},
    {"noatime", MS_NOATIME, 0}, {"atime", 0, MS_NOATIME}, {"nodiratime", MS_NODIRATIME, 0}, {"diratime", 0, MS_NODIRATIME},
    {"relatime", MS_RELATIME, 0}, {"norelatime", 0, MS_RELATIME}, {"strictatime", MS_STRICTATIME, 0}, {"silent", MS_SILENT, 0},
    {"loud", 0, MS_SILENT}, {"private", MS_PRIVATE, 0}, {"rprivate", MS_PRIVATE | MS_REC, 0}, {"slave", MS_SLAVE, 0},
    {"rslave", MS_SLAVE | MS_REC, 0}, {"shared", MS_SHARED, 0}, {"rshared", MS_SHARED | MS_REC, 0}, {"unbindable", MS_UNBINDABLE, 0},
    {"runbindable", MS_UNBINDABLE | MS_REC, 0}, {"x-create=dir", 0, 0}, {"x-create=file", 0, 0}, {"x-create=auto", 0, 0},
    {"x-detach", 0, 0}, {"nofail", 0, 0}, {"auto", 0, 0}, {"noauto", 0, 0}, {"defaults", 0, 0}, {"user", 0, 0}, {"users", 0, 0},
    {"nouser", 0, 0}, {"owner", 0, 0}, {"group", 0, 0},
};

static const struct option_flag *
known_option(const char *name, size_t length)
{
	for (size_t i = 0; i < LENGTH(known); i++)
		if (strlen(known[i].name) == length && strncmp(known[i].name, name, length) == 0)
			return &known[i];
	return NULL;
}

static bool
is_options(const char *field)
{
	return *field != '/' && known_option(field, strcspn(field, ",")) != NULL;
}

/* Splits options into flags and, what mount(2) does not know by number, the file system's own data. */
static void
parse_options(const char *text, unsigned long *flags, char *data)
{
	*flags = 0;
	*data = '\0';
	for (size_t length; *text != '\0'; text += length + (text[length] == ',')) {
		const struct option_flag *option;

		length = strcspn(text, ",");
		option = known_option(text, length);
		if (option != NULL)
			*flags = (*flags | option->set) & ~option->clear;
		else if (length > 0)
			sprintf(data + strlen(data), "%s%.*s", *data ? "," : "", (int)length, text);
	}
}

/* Finds what a path inside the root means: a symbolic link there must not lead out of it. Missing components stay as they are. */
static void
resolve(const char *root, const char *path, char *found)
{
	char left[PATH_MAX], next[PATH_MAX], link[PATH_MAX];
	size_t base;
	int links = 0;

	if (realpath(root, found) == NULL)
		err(EXIT_FAILURE, "failed to resolve path: %s%s%s", root, *path == '/' ? "" : "/", path);
	base = strcmp(found, "/") == 0 ? 0 : strlen(found);
	found[base] = '\0';
	snprintf(left, sizeof(left), "%s", path);
	while (*left != '\0') {
		size_t length = strcspn(left, "/"), at = strlen(found);
		ssize_t target;

		snprintf(next, sizeof(next), "%.*s", (int)length, left);
		memmove(left, left + length + (left[length] == '/'), strlen(left + length + (left[length] == '/')) + 1);
		if (*next == '\0' || strcmp(next, ".") == 0)
			continue;
		if (strcmp(next, "..") == 0) {
			while (at > base && found[--at] != '/')
				continue;
			found[at] = '\0';
			continue;
		}
		if (at + strlen(next) + 2 > PATH_MAX || links > 40)
			errx(EXIT_FAILURE, "failed to resolve path: %s", path);
		found[at] = '/';
		strcpy(found + at + 1, next);
		target = readlink(found, link, sizeof(link) - 1);
		if (target < 0)
			continue;
		links++;
		found[*link == '/' ? base : at] = '\0';
		if ((size_t)target + strlen(left) + 2 > PATH_MAX)
			errx(EXIT_FAILURE, "failed to resolve path: %s", path);
		memmove(left + target + 1, left, strlen(left) + 1);
		memcpy(left, link, (size_t)target);
		left[target] = '/';
	}
	if (*found == '\0')
		strcpy(found, "/");
}

static int
create(const char *path, bool directory)
{
	char parent[PATH_MAX];

	snprintf(parent, sizeof(parent), "%s", path);
	for (char *slash = strchr(parent + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(parent, 0755) < 0 && errno != EEXIST)
			return -1;
		*slash = '/';
	}
	if ((directory ? mkdir(path, 0755) : mknod(path, S_IFREG, 0)) < 0 && errno != EEXIST)
		return -1;
	return 0;
}

/* What a user namespace may not take off a mount again. */
static unsigned long
locked_flags(const char *path)
{
	static const unsigned long locked[][2] = {{ST_NOSUID, MS_NOSUID}, {ST_NODEV, MS_NODEV}, {ST_NOEXEC, MS_NOEXEC}, {ST_RDONLY, MS_RDONLY},
	    {ST_NOATIME, MS_NOATIME}, {ST_NODIRATIME, MS_NODIRATIME}, {ST_RELATIME, MS_RELATIME}};
	struct statvfs its;
	unsigned long flags = 0;

	if (statvfs(path, &its) < 0)
		return 0;
	for (size_t i = 0; i < LENGTH(locked); i++)
		if (its.f_flag & locked[i][0])
			flags |= locked[i][1];
	return flags;
}

static int
mount_one(const struct mntent *entry, const char *path, unsigned long flags, const char *data)
{
	bool plain_bind = flags == MS_BIND || flags == (MS_BIND | MS_REC);

	if (hasmntopt(entry, "x-detach"))
		return umount2(path, MNT_DETACH);
	if (!hasmntopt(entry, "rbind"))
		flags &= ~(unsigned long)MS_REC;
	if (flags & (MS_BIND | MS_REMOUNT))
		flags |= locked_flags(flags & MS_REMOUNT ? path : entry->mnt_fsname);
	if (mount(entry->mnt_fsname, path, entry->mnt_type, flags, data) < 0)
		return -1;
	/* A bind takes its flags only from a second call. */
	if (flags & MS_BIND && !(flags & MS_REMOUNT) && !plain_bind)
		return mount(NULL, path, NULL, flags | MS_REMOUNT, data);
	return 0;
}

static int
propagate(const struct mntent *entry, const char *path, unsigned long flags)
{
	static const struct { unsigned long flag; const char *recursive; } kinds[] = {
	    {MS_SHARED, "rshared"}, {MS_SLAVE, "rslave"}, {MS_PRIVATE, "rprivate"}, {MS_UNBINDABLE, "runbindable"}};

	for (size_t i = 0; i < LENGTH(kinds); i++)
		if (flags & kinds[i].flag &&
		    mount(NULL, path, NULL, kinds[i].flag | (hasmntopt(entry, kinds[i].recursive) ? MS_REC : 0), NULL) < 0)
			return -1;
	return 0;
}

static void
mount_entry(const char *root, const struct mntent *entry)
{
	char path[PATH_MAX], data[PATH_MAX];
	unsigned long flags;
	struct stat source;
	bool directory = hasmntopt(entry, "x-create=dir") != NULL, file = hasmntopt(entry, "x-create=file") != NULL;
	const char *what;

	resolve(root, entry->mnt_dir, path);
	parse_options(entry->mnt_opts, &flags, data);
	if (hasmntopt(entry, "x-create=auto") && (!(flags & MS_BIND) || stat(entry->mnt_fsname, &source) == 0)) {
		directory = !(flags & MS_BIND) || S_ISDIR(source.st_mode);
		file = !directory;
	}
	what = directory ? "create directory" : "create file";
	if ((directory || file) && create(path, directory) < 0)
		goto failed;
	what = hasmntopt(entry, "x-detach") ? "unmount" : "mount";
	if (strcmp(entry->mnt_type, "none") != 0 || hasmntopt(entry, "x-detach") || flags & ~(unsigned long)(PROPAGATION | MS_REC | MS_SILENT))
		if (mount_one(entry, path, flags & ~(unsigned long)PROPAGATION, data) < 0)
			goto failed;
	what = "set mount propagation";
	if (propagate(entry, path, flags) < 0)
		goto failed;
	return;

failed:
	if (hasmntopt(entry, "nofail") && hasmntopt(entry, "silent"))
		return;
	if (strstr(what, "mount") != NULL && strchr(what, ' ') == NULL)
		warn("failed to %s: %s at %s", what, entry->mnt_fsname, path);
	else
		warn("failed to %s: %s", what, path);
	if (!hasmntopt(entry, "nofail"))
		exit(EXIT_FAILURE);
}

static char empty[] = "", none[] = "none", tmpfs[] = "tmpfs", by_default[] = "rbind,x-create=auto";

static bool
missing(const char *field)
{
	return field == NULL || *field == '\0';
}

/* Puts in the fields that were left out. */
static void
complete(struct mntent *entry)
{
	if (!missing(entry->mnt_dir) && missing(entry->mnt_type) && is_options(entry->mnt_dir)) {
		entry->mnt_opts = entry->mnt_dir;
		entry->mnt_dir = empty;
	} else if (!missing(entry->mnt_type) && missing(entry->mnt_opts) && is_options(entry->mnt_type)) {
		entry->mnt_opts = entry->mnt_type;
		entry->mnt_type = none;
		if (strcmp(entry->mnt_dir, "none") == 0)
			entry->mnt_dir = empty;
	}
	if (missing(entry->mnt_opts))
		entry->mnt_opts = empty;
	if (missing(entry->mnt_type))
		entry->mnt_type = none;
	if (strcmp(entry->mnt_type, "none") != 0)
		return;
	if (strcmp(entry->mnt_fsname, "tmpfs") == 0)
		entry->mnt_type = tmpfs;
	else {
		if (missing(entry->mnt_dir))
			entry->mnt_dir = entry->mnt_fsname;
		if (missing(entry->mnt_opts))
			entry->mnt_opts = by_default;
	}
}

static void
mount_fstab(const char *root, const char *path, int pass)
{
	FILE *file = setmntent(path, "r");
	struct mntent entry;
	char line[4096];

	if (file == NULL)
		err(EXIT_FAILURE, "failed to open: %s", path);
	while (getmntent_r(file, &entry, line, sizeof(line)) != NULL) {
		if ((entry.mnt_passno != 0 ? entry.mnt_passno : entry.mnt_freq) != pass)
			continue;
		complete(&entry);
		if (missing(entry.mnt_fsname) || missing(entry.mnt_dir))
			errx(EXIT_FAILURE, "invalid fstab entry: \"%s\" at %s", line, path);
		mount_entry(root, &entry);
	}
	endmntent(file);
}

int
main(int argc, char **argv)
{
	const char *root = "/", *pass = "0";

	while (option(&argc, &argv, "--root", &root) || option(&argc, &argv, "--pass", &pass))
		continue;
	if (argc < 2) {
		printf("Usage: %s [--root DIR] [--pass NUM] FSTAB...\n", argv[0]);
		return EXIT_SUCCESS;
	}
	for (int i = 1; i < argc; i++)
		mount_fstab(root, strcmp(argv[i], "-") == 0 ? "/dev/stdin" : argv[i], atoi(pass));
	return EXIT_SUCCESS;
}
