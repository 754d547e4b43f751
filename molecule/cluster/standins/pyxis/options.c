/*
 * Copyright (c) 2026 The pcluster.postboot contributors
 * GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A stand-in for Pyxis (see README.md): its options in plugstack.conf and on the command line.
 */
#include "pyxis.h"

#include <stdlib.h>
#include <string.h>

struct options options = {.mount_home = -1, .remap_root = -1, .entrypoint = -1, .entrypoint_log = -1, .writable = -1};

static int
boolean(const char *word)
{
	static const char *const yes[] = {"1", "true", "yes", "y"}, *const no[] = {"0", "false", "no", "n"};

	for (size_t i = 0; i < LENGTH(yes); i++) {
		if (strcmp(word, yes[i]) == 0)
			return 1;
		if (strcmp(word, no[i]) == 0)
			return 0;
	}
	return -1;
}

static int
read_switch(bool *to, const char *key, const char *value)
{
	int said = boolean(value);

	if (said < 0) {
		slurm_error(MESSAGE "%s: invalid value: %s", key, value);
		return -1;
	}
	*to = said;
	return 0;
}

int
read_config(struct config *config, int count, char **words)
{
	*config = (struct config){.runtime_path = strdup("/run/pyxis"), .sbatch_support = true};
	for (int i = 0; i < count; i++) {
		const struct { const char *key; bool *to; } switches[] = {{"execute_entrypoint", &config->execute_entrypoint},
		    {"sbatch_support", &config->sbatch_support},
		    {"use_squashfuse", &config->use_squashfuse}};
		char *value = strchr(words[i], '='), *key = strndup(words[i], strcspn(words[i], "="));
		int failed = -1;

		if (value++ == NULL)
			goto unknown;
		for (size_t j = 0; j < LENGTH(switches); j++)
			if (strcmp(key, switches[j].key) == 0) {
				failed = read_switch(switches[j].to, key, value);
				goto next;
			}
		if (strcmp(key, "runtime_path") == 0)
			config->runtime_path = strdup(value);
		else if (strcmp(key, "container_scope") == 0 && (strcmp(value, "job") == 0 || strcmp(value, "global") == 0))
			config->job_scope = *value == 'j';
		else if (strcmp(key, "container_scope") == 0) {
			slurm_error(MESSAGE "container_scope: invalid value: %s", value);
			goto next;
		} else
			goto unknown;
		failed = 0;
		goto next;
	unknown:
		slurm_error(MESSAGE "unknown configuration option: %s", words[i]);
	next:
		free(key);
		if (failed)
			return -1;
	}
	return 0;
}

int
add_mount(const char *source, const char *target, const char *flags)
{
	const char *base;
	struct mount entry;

	if (*source == '/' || *source == '.')
		base = "x-create=auto,rbind";
	else if (strcmp(source, "tmpfs") == 0)
		base = "x-create=dir";
	else if (strcmp(source, "umount") == 0)
		base = "x-detach";
	else {
		slurm_error(MESSAGE "mount source must be a relative path, an absolute path, \"tmpfs\" or \"umount\"");
		return -1;
	}
	if (*target != '/' && *target != '.') {
		slurm_error(MESSAGE "mount target must be a relative path or an absolute path");
		return -1;
	}
	entry = (struct mount){strdup(source), strdup(target), format("%s%s%s", base, flags != NULL ? "," : "", flags != NULL ? flags : "")};
	for (size_t i = 0; i < options.mount_count; i++)
		if (strcmp(options.mounts[i].source, source) == 0 && strcmp(options.mounts[i].target, target) == 0 &&
		    strcmp(options.mounts[i].flags, entry.flags) == 0)
			return 0;
	options.mounts = realloc(options.mounts, (options.mount_count + 1) * sizeof(entry));
	options.mounts[options.mount_count++] = entry;
	return 0;
}

/* SOURCE, SOURCE:TARGET or SOURCE:TARGET:FLAG+FLAG; as "," parts mounts, "+" parts flags. */
static int
take_mount(char *text)
{
	char *whole = strdup(text), *source = strsep(&text, ":"), *target = text != NULL ? strsep(&text, ":") : source;

	if (*source == '\0' || *target == '\0') {
		slurm_error(MESSAGE "--container-mounts: invalid format: %s", whole);
		return -1;
	}
	free(whole);
	for (char *at = text; at != NULL && *at != '\0'; at++)
		if (*at == '+')
			*at = ',';
	if (add_mount(source, target, text != NULL && *text != '\0' ? text : NULL) < 0) {
		slurm_error(MESSAGE "could not add mount entry: %s:%s", source, target);
		return -1;
	}
	return 0;
}

bool
variable_wanted(const char *name)
{
	for (size_t i = 0; i < options.variable_count; i++)
		if (strcmp(options.variables[i], name) == 0)
			return true;
	return false;
}

static int
take_variable(char *name)
{
	if (*name == '\0') {
		slurm_error(MESSAGE "--container-env: invalid format: empty name");
		return -1;
	}
	if (variable_wanted(name))
		return 0;
	options.variables = realloc(options.variables, (options.variable_count + 1) * sizeof(char *));
	options.variables[options.variable_count++] = strdup(name);
	return 0;
}

static int
take_list(const char *text, int (*take)(char *))
{
	char *copy = strdup(text), *rest = copy, *part;
	int failed = 0;

	while (failed == 0 && (part = strsep(&rest, ",")) != NULL)
		failed = take(part);
	free(copy);
	return failed;
}

static int
take_name(const char *text)
{
	static const char *const known[] = {"auto", "create", "exec", "no_exec"};
	char *name = strdup(text), *flags = name;

	strsep(&flags, ":");
	if (*name == '\0') {
		slurm_error(MESSAGE "--container-name: empty name");
		return -1;
	}
	if (flags == NULL || *flags == '\0')
		flags = (char *)known[0];
	for (size_t i = 0; i < LENGTH(known); i++)
		if (strcmp(flags, known[i]) == 0) {
			options.name = name;
			options.name_flags = flags;
			return 0;
		}
	slurm_error(MESSAGE "--container-name: flag must be \"auto\", \"create\", \"exec\" or \"no_exec\"");
	return -1;
}

/* A value that Slurm may hand over twice. */
static int
take_once(char **to, const char *name, const char *value)
{
	if (*to == NULL)
		*to = strdup(value);
	else if (strcmp(*to, value) != 0) {
		slurm_error(MESSAGE "--%s specified multiple times", name);
		return -1;
	}
	return 0;
}

static int
take_switch(int *to, int value, const char *one, const char *other)
{
	if (*to != -1 && *to != value) {
		slurm_error(MESSAGE "both --%s and --%s were specified", one, other);
		return -1;
	}
	*to = value;
	return 0;
}

enum kind {
	IMAGE, MOUNTS, WORKDIR, NAME, MOUNT_HOME, NO_MOUNT_HOME, REMAP_ROOT, NO_REMAP_ROOT, ENTRYPOINT, NO_ENTRYPOINT, ENTRYPOINT_LOG,
	WRITABLE, READONLY, ENV
};

static int take_option(int kind, const char *value, int remote);

static struct spank_option table[] = {
    {"container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH",
        "[pyxis] the container's image: a Docker image, as enroot import takes it, or the path of a squashfs file on the compute node.", 1, IMAGE,
        take_option},
    {"container-mounts", "SRC:DST[:FLAGS][,SRC:DST...]", "[pyxis] what is mounted inside the container; FLAGS are joined by \"+\", as in \"ro+rprivate\"",
        1, MOUNTS, take_option},
    {"container-workdir", "PATH", "[pyxis] the directory to start in, inside the container", 1, WORKDIR, take_option},
    {"container-name", "NAME", "[pyxis] the container's name. A named container stays after the step, and is used again where it exists already.", 1,
        NAME, take_option},
    {"container-mount-home", NULL, "[pyxis] mount the user's home directory", 0, MOUNT_HOME, take_option},
    {"no-container-mount-home", NULL, "[pyxis] do not mount the user's home directory", 0, NO_MOUNT_HOME, take_option},
    {"container-remap-root", NULL, "[pyxis] be root inside the container, with no more privileges than before", 0, REMAP_ROOT, take_option},
    {"no-container-remap-root", NULL, "[pyxis] do not be root inside the container", 0, NO_REMAP_ROOT, take_option},
    {"container-entrypoint", NULL, "[pyxis] run the image's entry point", 0, ENTRYPOINT, take_option},
    {"no-container-entrypoint", NULL, "[pyxis] do not run the image's entry point", 0, NO_ENTRYPOINT, take_option},
    {"container-entrypoint-log", NULL, "[pyxis] print what the entry point prints", 0, ENTRYPOINT_LOG, take_option},
    {"container-writable", NULL, "[pyxis] let the container's file system be written", 0, WRITABLE, take_option},
    {"container-readonly", NULL, "[pyxis] do not let the container's file system be written", 0, READONLY, take_option},
    {"container-env", "NAME[,NAME...]", "[pyxis] the variables whose values come from the job even where the image has others", 1, ENV, take_option},
    SPANK_OPTIONS_TABLE_END,
};

static int
take_option(int kind, const char *value, int remote)
{
	const char *name = table[kind].name;

	(void)remote;
	if (table[kind].has_arg && (value == NULL || *value == '\0')) {
		slurm_error(MESSAGE "--%s: argument required", name);
		return -1;
	}
	switch ((enum kind)kind) {
	case IMAGE:
		return take_once(&options.image, name, value);
	case MOUNTS:
		return take_list(value, take_mount);
	case WORKDIR:
		return take_once(&options.workdir, name, value);
	case NAME:
		if (options.name == NULL)
			return take_name(value);
		return take_once(&options.name, name, value);
	case MOUNT_HOME:
	case NO_MOUNT_HOME:
		return take_switch(&options.mount_home, kind == MOUNT_HOME, "container-mount-home", "no-container-mount-home");
	case REMAP_ROOT:
	case NO_REMAP_ROOT:
		return take_switch(&options.remap_root, kind == REMAP_ROOT, "container-remap-root", "no-container-remap-root");
	case ENTRYPOINT:
	case NO_ENTRYPOINT:
		return take_switch(&options.entrypoint, kind == ENTRYPOINT, "container-entrypoint", "no-container-entrypoint");
	case ENTRYPOINT_LOG:
		options.entrypoint_log = 1;
		return 0;
	case WRITABLE:
	case READONLY:
		return take_switch(&options.writable, kind == WRITABLE, "container-writable", "container-readonly");
	case ENV:
		return take_list(value, take_variable);
	}
	return -1;
}

int
register_options(spank_t spank)
{
	for (size_t i = 0; table[i].name != NULL; i++) {
		spank_err_t failed = spank_option_register(spank, &table[i]);

		if (failed != ESPANK_SUCCESS) {
			slurm_error(MESSAGE "couldn't register option %s: %s", table[i].name, spank_strerror(failed));
			return -1;
		}
	}
	return 0;
}

/* PYXIS_CONTAINER_* say what the command line has not said. A switch has one variable, and READONLY is the contrary of WRITABLE. */
void
read_option_variables(spank_t spank)
{
	const struct { const char *name; bool said; int yes, no; } variables[] = {
	    {"IMAGE", options.image != NULL, IMAGE, IMAGE}, {"MOUNTS", options.mount_count > 0, MOUNTS, MOUNTS},
	    {"WORKDIR", options.workdir != NULL, WORKDIR, WORKDIR}, {"NAME", options.name != NULL, NAME, NAME},
	    {"MOUNT_HOME", options.mount_home != -1, MOUNT_HOME, NO_MOUNT_HOME},
	    {"REMAP_ROOT", options.remap_root != -1, REMAP_ROOT, NO_REMAP_ROOT},
	    {"ENTRYPOINT", options.entrypoint != -1, ENTRYPOINT, NO_ENTRYPOINT},
	    {"ENTRYPOINT_LOG", options.entrypoint_log != -1, ENTRYPOINT_LOG, -1}, {"WRITABLE", options.writable != -1, WRITABLE, READONLY},
	    {"READONLY", options.writable != -1, READONLY, WRITABLE}, {"ENV", options.variable_count > 0, ENV, ENV}};

	for (size_t i = 0; i < LENGTH(variables); i++) {
		char *name = format("PYXIS_CONTAINER_%s", variables[i].name), room[4096];
		const char *value = getenv(name);
		int kind = variables[i].yes;

		if (spank_context() == S_CTX_REMOTE)
			value = spank_getenv(spank, name, room, sizeof(room)) == ESPANK_SUCCESS ? room : NULL;
		free(name);
		if (value == NULL || variables[i].said)
			continue;
		if (!table[kind].has_arg) {
			int said = boolean(value);

			kind = said < 0 ? -1 : said ? kind : variables[i].no;
		}
		if (kind >= 0)
			take_option(kind, value, 0);
	}
}

bool
container_wanted(void)
{
	const struct { bool said; const char *name; } in_vain[] = {{options.mount_count > 0, "container-mounts"},
	    {options.workdir != NULL, "container-workdir"},
	    {options.mount_home != -1, "[no-]container-mount-home"}, {options.remap_root != -1, "[no-]container-remap-root"},
	    {options.entrypoint != -1, "[no-]container-entrypoint"}, {options.entrypoint_log != -1, "container-entrypoint-log"},
	    {options.writable == 0, "container-readonly"}, {options.writable == 1, "container-writable"}};

	if (options.image != NULL || options.name != NULL)
		return true;
	for (size_t i = 0; i < LENGTH(in_vain); i++)
		if (in_vain[i].said)
			slurm_error(MESSAGE "ignoring --%s because neither --container-image nor --container-name is set", in_vain[i].name);
	return false;
}
